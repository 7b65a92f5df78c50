"""The papers' claims about time, judged on what this project's kernels took on GPUs: what ships, as
``benchmarks/latency.py`` judged it."""

from pathlib import Path

from kvq_core.claims.board import SHIPPED, ClaimResult
from kvq_core.frozen import Frozen

FILE = SHIPPED / "latency.json"
RULE = "A claim about time holds on a device if all its criteria hold in every case that was measured there."


class DeviceBoard(Frozen):
    """The claims about time on one device: of which kernels, and whether these have changed since."""

    device: str
    torch: str
    triton: str
    kernels: str
    changed: bool
    claims: tuple[ClaimResult, ...]

    @property
    def versions(self) -> str:
        changed = ", which have changed since" if self.changed else ""
        return f"{self.device}: torch {self.torch}, Triton {self.triton}, kernels {self.kernels}{changed}"


class Latency(Frozen):
    """The boards by device, and by paper what a method's description says where a claim about time does not hold."""

    boards: tuple[DeviceBoard, ...] = ()
    said: dict[str, tuple[str, ...]] = {}


def stored_latency(file: Path = FILE) -> Latency:
    """As it ships; empty where nothing was measured."""
    return Latency.model_validate_json(file.read_bytes()) if file.is_file() else Latency()
