"""Timing on a GPU: medians of many runs by CUDA events, each with a cold L2 cache, and the copy bandwidth."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Cycles, about a millisecond, that the GPU waits before each timed call. Python has launched all of the call by then:
# timed is the work of the GPU, not how fast it is handed over.
QUEUE = 2_000_000


@dataclass(frozen=True)
class Clock:
    """``runs`` timed calls after ``warm_up`` others. On a CPU, which only a dry run is, a wall clock stands in."""

    device: str
    runs: int = 100
    warm_up: int = 10

    def median_ms(self, call: Callable[[], Any], graph: bool = False) -> float:
        """``graph``: the call is captured as a CUDA graph, which is replayed."""
        for _ in range(self.warm_up):
            call()
        if graph and self.device != "cpu":
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                call()
            call = captured.replay
        return statistics.median(self._once(call) for _ in range(self.runs))

    def _once(self, call: Callable[[], Any]) -> float:
        if self.device == "cpu":
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        torch.cuda._sleep(QUEUE)
        flush = torch.empty(256 << 20, dtype=torch.uint8, device=self.device)  # several times any L2
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


def copy_bandwidth(clock: Clock) -> float:
    """Bytes a second of a large copy on the device, read and written ones counted: the roofline of every row."""
    size = (1 << 20) if clock.device == "cpu" else (1 << 30)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    return 2e3 * size / clock.median_ms(lambda: target.copy_(source))


def machine(device: str) -> dict[str, Any]:
    """What the numbers were taken on."""
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        facts["triton"] = None
    if device == "cpu":
        return facts | {"device": "cpu"}
    of = torch.cuda.get_device_properties(0)
    return facts | {
        "device": of.name,
        "memory_gb": round(of.total_memory / 1e9, 1),
        "processors": of.multi_processor_count,
    }
