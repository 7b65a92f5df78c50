"""What every case of the GPU benchmark is given: shapes, the clock, and the roofline."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from gpu_timing import Clock
from torch import Tensor

Numbers = dict[str, float]


class Shape(NamedTuple):
    kv_heads: int
    query_heads: int
    head_dim: int

    @property
    def shared(self) -> int:
        """Query heads that read one KV head."""
        return self.query_heads // self.kv_heads


@dataclass(frozen=True)
class Setting:
    """Which models and lengths; the dry run's are tiny."""

    clock: Clock
    bandwidth: float
    models: dict[str, Shape]
    tokens: tuple[int, ...]

    @property
    def device(self) -> str:
        return self.clock.device

    def roofline(self, size: int) -> float:
        """Milliseconds to move ``size`` bytes."""
        return 1e3 * size / self.bandwidth

    def ms(self, call: Callable[[], Any], graph: bool = False) -> float:
        return self.clock.median_ms(call, graph)

    def beside(self, name: str, call: Callable[[], Any]) -> Numbers:
        """An alternative that may take long, hence a fifth of the runs; nothing, and a word about it, where it has no
        kernel here or does not fit into memory."""
        try:
            return {name: replace(self.clock, runs=max(2, self.clock.runs // 5)).median_ms(call)}
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            return {}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.float16)
