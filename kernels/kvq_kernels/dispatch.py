"""Which implementation of an operation runs. Every operation asks here, and nowhere else is a path chosen.

``auto`` takes Triton for tensors on a GPU that can run the kernel and plain torch for everything else; ``triton``
either runs Triton or raises; ``torch`` is the reference. With TRITON_INTERPRET=1 the kernels can be asked for on a CPU,
slowly.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Path = Literal["auto", "triton", "torch"]
PATHS = ("auto", "triton", "torch")
OLDEST = (8, 0)  # compute capability the kernels are compiled for in the tests

_taken: ContextVar[dict[str, set[str]] | None] = ContextVar("taken", default=None)
_recording: ContextVar[bool] = ContextVar("recording", default=False)


class KernelError(ValueError):
    """An operation was asked for on a path, or with tensors, it does not support; the message says why."""


@contextmanager
def paths_taken() -> Iterator[dict[str, set[str]]]:
    """Within the block, which path each operation took: {operation: {"triton", "torch"}}."""
    found: dict[str, set[str]] = {}
    token = _taken.set(found)
    try:
        yield found
    finally:
        _taken.reset(token)


@contextmanager
def compile_only() -> Iterator[None]:
    """Within the block kernels may be asked for on any tensors, because they are recorded and not launched."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


def use_triton(operation: str, path: Path, like: Tensor, obstacle: str | None = None) -> bool:
    """Whether ``operation`` runs its Triton kernel on tensors like ``like``; ``obstacle``: why it could not.

    Raises KernelError where Triton was asked for and cannot run.
    """
    if path not in PATHS:
        raise KernelError(f"{operation}: path = {path!r} is not one of {', '.join(PATHS)}.")
    triton = path != "torch"
    if triton:
        reason = obstacle or _device_obstacle(like, path == "triton")
        if reason and path == "triton":
            raise KernelError(f"{operation}: Triton cannot run here: {reason}; use path = 'auto' or 'torch'.")
        triton = reason is None
    if (taken := _taken.get()) is not None:
        taken.setdefault(operation, set()).add("triton" if triton else "torch")
    return triton


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _device_obstacle(like: Tensor, asked: bool) -> str | None:
    if not _installed():
        return "triton is not installed"
    if _recording.get() or (asked and interpreted()):
        return None
    if not like.is_cuda:
        return f"the tensors are on {like.device.type}, not on a GPU (TRITON_INTERPRET=1 interprets the kernels)"
    major, minor = _capability(like.device.index or 0)
    if (major, minor) < OLDEST:
        return f"the GPU's compute capability is {major}.{minor}, and the kernels need {OLDEST[0]}.{OLDEST[1]}"
    return None


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
