"""What every case of the GPU benchmark is given: shapes, the clock, and the roofline."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from gpu_read import read_calls
from gpu_timing import Clock, Timing
from torch import Tensor

Numbers = dict[str, Any]  # timings by name, and plain numbers: bytes, rooflines in milliseconds


class Shape(NamedTuple):
    kv_heads: int
    query_heads: int
    head_dim: int
    layers: int = 32

    @property
    def shared(self) -> int:
        """Query heads that read one KV head."""
        return self.query_heads // self.kv_heads


@dataclass(frozen=True)
class Setting:
    """The clock, and the bandwidth of a large copy in bytes a second."""

    clock: Clock
    bandwidth: float

    @property
    def device(self) -> str:
        return self.clock.device

    def roofline(self, size: int) -> float:
        """Milliseconds to move ``size`` bytes."""
        return 1e3 * size / self.bandwidth

    def ms(self, call: Callable[[], Any]) -> Timing:
        """Of something that must run. Raises RuntimeError where it does not."""
        if found := self.clock.race({"it": call}):
            return found["it"]
        raise RuntimeError("did not run; why stands above")

    def beside(self, name: str, call: Callable[[], Any]) -> Numbers:
        """An alternative that may take long, hence a fifth of the runs; nothing where it does not run here."""
        return replace(self.clock, runs=max(2, self.clock.runs // 5)).race({name: call})

    def read(self, size: int) -> Timing:
        """The ceiling of reading ``size`` bytes once: the fastest of the ways to do so."""
        return min(self.clock.race(read_calls(size, self.device)).values(), key=lambda found: found["ms"])

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.float16)
