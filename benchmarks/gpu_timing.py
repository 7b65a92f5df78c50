"""Timing on a GPU: quartiles of many runs by CUDA events, each with a cold L2 cache, and medians of several rounds."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

CYCLES_A_MS = 2_000_000  # of a GPU's clock, about
QUEUED_MS = 1.0  # that the GPU waits at least before a timed call, while Python launches all of it
FLUSHED = 256 << 20  # bytes, several times any L2

Call = Callable[[], Any]
Timing = dict[str, Any]  # ms, the median; q1 and q3; rounds: the median of each; runs


@dataclass(frozen=True)
class Clock:
    """``runs`` timed calls in each of ``rounds``, after ``warm_up`` others. What is compared takes turns, round by
    round, so that a GPU that grows warm or slow does so for all. On a CPU, as in a dry run, a wall clock stands in."""

    device: str
    runs: int = 40
    rounds: int = 3
    warm_up: int = 5

    def race(self, calls: dict[str, Call], graph: bool = False) -> dict[str, Timing]:
        """Timings of calls by name. ``graph``: each is captured as a CUDA graph, which is replayed. Left out, with a
        word about it: what has no kernel here or does not fit into memory."""
        ready: dict[str, tuple[Call, float]] = {}
        for name, call in calls.items():
            try:
                ready[name] = self._ready(call, graph)
            except RuntimeError as error:
                print(f"{name}: {(str(error).splitlines() or ['failed'])[0]}", file=sys.stderr)
        found: dict[str, list[list[float]]] = {name: [] for name in ready}
        for _ in range(self.rounds):
            for name, (call, queued) in ready.items():
                found[name].append([self._once(call, queued) for _ in range(self.runs)])
        return {name: timing(rounds) for name, rounds in found.items()}

    def _ready(self, call: Call, graph: bool) -> tuple[Call, float]:
        """The call, warm, and the milliseconds that Python takes to launch it."""
        launched = 0.0
        for _ in range(self.warm_up):
            began = time.perf_counter()
            call()
            launched = 1e3 * (time.perf_counter() - began)
        if graph and self.device != "cpu":
            torch.cuda.synchronize()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                call()
            call, launched = captured.replay, 0.0
        return call, QUEUED_MS + 1.5 * launched

    def _once(self, call: Call, queued: float) -> float:
        if self.device == "cpu":
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        torch.cuda._sleep(int(queued * CYCLES_A_MS))
        _flush(self.device).sum()  # read and not written: nothing of it is left to be written back during the call
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


@cache
def _flush(device: str) -> Tensor:
    return torch.ones(FLUSHED // 4, device=device)


def timing(rounds: list[list[float]]) -> Timing:
    """Quartiles of all runs, and the median of each round."""
    runs = sorted(run for each in rounds for run in each)
    q1, median, q3 = statistics.quantiles(runs, n=4, method="inclusive")
    medians = [statistics.median(each) for each in rounds]
    return {"ms": median, "q1": q1, "q3": q3, "rounds": medians, "runs": len(runs)}


def copy_bandwidth(clock: Clock) -> float:
    """Bytes a second of a large copy on the device, read and written ones counted: the roofline of what also writes."""
    size = (1 << 20) if clock.device == "cpu" else (1 << 30)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    return 2e3 * size / clock.race({"copy": lambda: target.copy_(source)})["copy"]["ms"]


def machine(device: str) -> dict[str, Any]:
    """What the numbers are taken on."""
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "triton": None}
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        pass
    if device == "cpu":
        return facts | {"device": "cpu", "card": "none"}
    of = torch.cuda.get_device_properties(0)
    return facts | {
        "device": of.name,
        "card": str(getattr(of, "uuid", "unknown")),
        "memory_gb": round(of.total_memory / 1e9, 1),
        "processors": of.multi_processor_count,
    }
