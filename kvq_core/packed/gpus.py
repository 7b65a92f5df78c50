"""What GPUs took to decode with packed caches, measured and shipped, for machines that have none."""

import json
from pathlib import Path
from typing import NamedTuple

from kvq_core.shipped import shipped

SHIPPED = shipped("kernels", "gpu.json")
CHANGED = "The kernels have changed since and were not measured again."


class DecodeSpeed(NamedTuple):
    """A whole model that decoded on one kind of cache; ``times`` fp16's tokens a second, None where fp16 did not fit;
    peak memory in GB with the model's weights."""

    cache: str
    batch: int
    tokens_per_second: float
    times: float | None
    peak_gb: float


class MeasuredGpu(NamedTuple):
    """One device: versions and kernels, whether these have changed since, the model's shape and its tokens in the
    cache, and how many of the project's targets are held, open and missed."""

    device: str
    torch: str
    triton: str
    kernels: str
    changed: bool
    model: str
    tokens: int
    held: int
    open: int
    missed: int
    rows: tuple[DecodeSpeed, ...]

    @property
    def versions(self) -> str:
        return f"torch {self.torch}, Triton {self.triton}, kernels {self.kernels}"

    @property
    def summary(self) -> str:
        """What the rows are of, and beside them the targets."""
        return (
            f"Random weights of {self.model}'s shape over {self.tokens:,} tokens, steps from a CUDA graph. Of what is "
            f"compared with the project's targets, {self.held} are held, {self.open} open and {self.missed} missed."
        ) + (f" {CHANGED}" if self.changed else "")


def measured_gpus(file: Path = SHIPPED) -> list[MeasuredGpu]:
    """By device; none where nothing was measured."""
    if not file.is_file():
        return []
    devices = json.loads(file.read_text(encoding="utf-8"))
    return [MeasuredGpu(**{**each, "rows": tuple(DecodeSpeed(**row) for row in each["rows"])}) for each in devices]
