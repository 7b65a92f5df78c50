"""What every case of the GPU benchmark is given: shapes, the clock, and the roofline."""

from collections.abc import Callable
from dataclasses import dataclass
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

    def ms(self, call: Callable[[], Any]) -> float:
        return self.clock.median_ms(call)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.float16)
