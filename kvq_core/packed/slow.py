"""Methods whose kernels read a cache more slowly than fp16 attention does, by a count of instructions that ships."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from kvq_core.shipped import shipped

SHIPPED = shipped("kernels", "slow.json")


class Slow(NamedTuple):
    """One method: how many times as long as fp16 attention its slowest operation takes, from the chip on which that is
    least to the one on which it is most."""

    method: str
    operation: str
    least: float
    most: float


def slow_methods(file: Path = SHIPPED) -> list[Slow]:
    """The slowest operation of each method; none where nothing was counted."""
    if not file.is_file():
        return []
    found: dict[str, Slow] = {}
    for operation, told in _counted(file)["operations"].items():
        times = told["slower"].values()
        here = Slow(told["method"], operation, min(times), max(times))
        if here.least > 1 and here.most > found.get(here.method, here).most - 1e-9:
            found[here.method] = here
    return list(found.values())


def chips(file: Path = SHIPPED) -> list[str]:
    """The GPUs that the counts were set against."""
    return list(_counted(file)["assumed"]["chips"]) if file.is_file() else []


def _counted(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))
