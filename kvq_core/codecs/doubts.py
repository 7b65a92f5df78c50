"""What a codec refuses by looking at numbers, asked later where they are on a device that would be waited for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from kvq_core.errors import MethodError

Doubt = tuple[Tensor, str]  # whether all is as it should be, and what is said where it is not
_DOUBTS: ContextVar[list[Doubt] | None] = ContextVar("what a codec was not sure of", default=None)


@contextmanager
def doubting(doubts: list[Doubt]) -> Iterator[None]:
    """Within it, what is to be refused on another device than the CPU is noted among ``doubts``."""
    token = _DOUBTS.set(doubts)
    try:
        yield
    finally:
        _DOUBTS.reset(token)


def refuse_unless(sound: Tensor, reason: str) -> None:
    """Raises MethodError, at once or when somebody asks, where a tensor of one truth value says no."""
    doubts = _DOUBTS.get()
    if doubts is not None and sound.device.type != "cpu":
        doubts.append((sound, reason))
    elif not sound:
        raise MethodError(reason)


def refusal(doubts: list[Doubt]) -> str | None:
    """What is to be said of the first that was justified; one wait for all of them."""
    by_device: dict[str, list[Doubt]] = {}
    for doubt in doubts:
        by_device.setdefault(str(doubt[0].device), []).append(doubt)
    for of_device in by_device.values():
        whole = torch.stack([sound for sound, _ in of_device]).tolist()
        if not all(whole):
            return of_device[whole.index(False)][1]
    return None
