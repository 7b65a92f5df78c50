"""Launching kernels: the one place with block sizes, warps and pipeline stages, and the recorder for compiling ahead.

The settings follow from what a kernel does. All of them stream a cache once, so a program needs many bytes in flight
and few registers: tiles of 4,096 to 8,192 codes, warps that keep a thread at 64 of them or fewer (128 where codes stay
in their words; more spill, see tests/triton), and 3 pipelined stages where a loop runs over tokens.
``CANDIDATES`` are what the GPU benchmark times for the decode kernel; nothing is tuned at run time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from kvq_kernels.dispatch import compile_only
from torch import Tensor

MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True)
class Launch:
    """``tokens`` a tile, warps a program, stages of the software pipeline, and the most registers a thread may have,
    where fewer leave room for more programs."""

    tokens: int
    warps: int = 4
    stages: int = 2
    registers: int = MOST_REGISTERS

    @property
    def options(self) -> dict[str, int]:
        """As Triton takes them."""
        found = {"num_warps": self.warps, "num_stages": self.stages}
        return found if self.registers == MOST_REGISTERS else {**found, "maxnreg": self.registers}


# Elements of a row in a program, whose 2-bit codes fill the 32 bytes that memory is written in, and a thread for every
# 32 of MOST_QUANTIZED: what a group needs is found once then, by one thread. Nothing is looped over.
QUANTIZE = Launch(tokens=128, warps=4, stages=1)
DEQUANTIZE = Launch(tokens=64, stages=1)  # rows a program, of as many elements
SCORES = Launch(tokens=64, warps=8, stages=1)  # one tile a program, of registers for two programs a processor
VALUES = Launch(tokens=64, warps=8, stages=3)
# A part of a block a turn. Half as many programs again, of 168 registers each, gain nothing: a program waits for its
# own last product (measured on an H200, benchmarks/gpu-results/tuning.json).
DECODE = Launch(tokens=64, warps=1)
SQUAT = Launch(tokens=32, warps=8, stages=1)  # tokens are the group's
LATENT = Launch(tokens=64, warps=8, stages=2)  # both halves of the rebuilt keys stay in registers
COMMUTED = Launch(tokens=64, stages=2)  # rows of a KV head's codebook come from L1, which they fit
TABLES = Launch(tokens=32, stages=1)  # entries of a codebook
MIXED = Launch(tokens=32, warps=8, stages=1)
COMBINE = Launch(tokens=256, warps=8, stages=1)  # splits a turn, all on their way at once
COMBINED = 32  # channels of a program that combines: a head's are shared out, for that is all it has to wait for
ROUND = Launch(tokens=64, stages=1)  # blocks of 32 channels
ENTER = Launch(tokens=2048, stages=1)  # elements at once, combining splits as COMBINE does meanwhile

# A deeper pipeline helps where loads take longer than the products they feed, and takes more shared memory.
CANDIDATES = tuple(Launch(64, 1, stages, most) for stages in (2, 3) for most in (MOST_REGISTERS, 168, 128))
REGISTERS = 65536  # of a multiprocessor, which programs are given in eights a thread
QUARTERS = 4  # of a multiprocessor, each with as many of its registers and warps of its own
RESERVED = 1024  # bytes of a multiprocessor's shared memory that go with every program
MOST_CODES = 8192  # of a tile that is read
MOST_QUANTIZED = 4096  # of a tile that is written: its elements are float32 in several registers each

PROGRAMS_PER_PROCESSOR = 4  # split-K: enough independent programs to hide the latency of the others' loads


@dataclass(frozen=True)
class LaunchRecord:
    """One launch as it would have happened: the kernel, its run-time arguments by name and its constants."""

    kernel: Any
    arguments: dict[str, Any]
    constants: dict[str, Any]
    how: Launch


_fit: dict[tuple[Any, ...], int] = {}  # programs of a compiled form that a multiprocessor has room for
_recorder: ContextVar[list[LaunchRecord] | None] = ContextVar("recorder", default=None)


@contextmanager
def record_launches() -> Iterator[list[LaunchRecord]]:
    """Within the block launches are noted instead of run, so that exactly what runs can be compiled ahead of time.

    Outputs of operations called inside are uninitialised memory.
    """
    found: list[LaunchRecord] = []
    token = _recorder.set(found)
    try:
        with compile_only():
            yield found
    finally:
        _recorder.reset(token)


def run(kernel: Any, grid: tuple[int, ...], how: Launch, arguments: dict[str, Any], constants: dict[str, Any]) -> None:
    """Launch ``kernel`` on ``grid`` with arguments and compile-time constants by name."""
    if not all(grid):
        return  # nothing to do for an empty tensor
    if (found := _recorder.get()) is not None:
        found.append(LaunchRecord(kernel, arguments, constants, how))
        return
    like = next(argument for argument in arguments.values() if isinstance(argument, Tensor))
    with torch.cuda.device_of(like):  # Triton launches on the current GPU, wherever the tensors are
        kernel[grid](**arguments, **constants, **how.options)


def tile_of(how: Launch, head_dim: int, group: int = 0) -> tuple[int, int]:
    """Tokens and channels of a tile, powers of two and whole words of signs.

    A group may be longer than the tile, which is half as large then: otherwise registers spill.
    """
    channels = max(32, power_of_two(head_dim))
    most = MOST_CODES // 2 if group > how.tokens else MOST_CODES
    return max(32, min(how.tokens, most // channels)), channels


def split_tokens(tokens: int, tile: int, others: int, like: Tensor) -> tuple[int, int]:
    """Split-K: tokens a split, whole tiles of them, and the number of splits, where ``others`` programs run anyway."""
    wanted = max(1, PROGRAMS_PER_PROCESSOR * processors(like) // max(1, others))
    chunk = tile * max(1, -(-tokens // (tile * wanted)))
    return chunk, -(-tokens // chunk)


def processors(like: Tensor) -> int:
    """Multiprocessors of the tensor's GPU; a small number where there is none, for the interpreter's sake."""
    return torch.cuda.get_device_properties(like.device).multi_processor_count if like.is_cuda else 2


def programs_at_once(
    kernel: Any, how: Launch, arguments: dict[str, Any], constants: dict[str, Any], like: Tensor
) -> int:
    """How many programs of a kernel the tensor's GPU runs at once: as many as registers and shared memory have room
    for. One more would begin when all others end."""
    if _recorder.get() is not None or not like.is_cuda:
        return _fitting(how, how.registers) * processors(like)
    key = kernel, how, like.device, tuple(sorted(constants.items())), tuple(_kind(x) for x in arguments.values())
    if key not in _fit:
        with torch.cuda.device_of(like):
            made = kernel.warmup(grid=(1,), **arguments, **constants, **how.options)
            made._init_handles()  # as Triton's tutorials do: how many registers it takes is known from here on
        room = torch.cuda.get_device_properties(like.device).shared_memory_per_multiprocessor
        _fit[key] = max(1, min(_fitting(how, made.n_regs), room // (made.metadata.shared + RESERVED)))
    return _fit[key] * processors(like)


def _fitting(how: Launch, registers: int) -> int:
    """Programs whose threads take so many registers that a multiprocessor has room for: a warp lies in one quarter, so
    that of 184 registers each takes two and not 2.8."""
    return max(1, QUARTERS * (REGISTERS // QUARTERS // (32 * 8 * ceil(registers / 8))) // how.warps)


def _kind(argument: Any) -> Any:
    """What of an argument decides what is compiled."""
    return argument.dtype if isinstance(argument, Tensor) else type(argument)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
