"""Room for a growing matrix of blocks: records never move, and what is added to them is found through a table."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from kvq_kernels.blocks import ALIGNED, BlockForm, Dense
from torch import Tensor

REACH = 8192  # blocks that a table has places for, a million tokens; more make a new one


class Blocks(ABC):
    """Records of ``matrices`` matrices, in segments (blocks, matrices, bytes) uint8."""

    form: BlockForm
    matrices: int

    @property
    @abstractmethod
    def segments(self) -> list[Tensor]:
        """The first blocks, those after them, ..."""

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """int64: how many times 16 bytes a block's first record lies after the first record of all, which is how a
        kernel finds it whatever segment it is in."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the segments and the table."""

    @abstractmethod
    def reserve(self, tokens: int) -> None:
        """Have room for so many tokens. What is there already stays where it is."""

    @property
    def records(self) -> Tensor:
        """Where records begin."""
        return self.segments[0]

    def write(self, first: int, fresh: Dense) -> None:
        """Enter tokens from token ``first`` on, for which there is room."""
        per = self.form.tokens
        n = fresh.codes.shape[-1 if self.form.axis == "tokens" else -2]
        for start, segment in self._segments():
            begin, end = max(first, start * per), min(first + n, (start + len(segment)) * per)
            if begin < end:
                block = begin // per - start
                part = segment[block : -(-end // per) - start]
                self.form.write(part, begin - (start + block) * per, self.form.cut(fresh, begin - first, end - first))

    def read(self, tokens: int) -> Dense:
        """The first ``tokens``."""
        blocks = -(-tokens // self.form.tokens)
        parts = [segment[: blocks - start] for start, segment in self._segments() if start < blocks]
        return self.form.read(parts[0] if len(parts) == 1 else torch.cat(parts or [self.segments[0][:0]]), tokens)

    def cut(self, tokens: int, end: int) -> None:
        """Forget all from ``tokens`` to ``end``, whole groups of tokens: their places hold nothing again."""
        first, rest = divmod(tokens, self.form.tokens)  # the block that keeps some, and how many
        kept = None
        for start, segment in self._segments():
            if rest and start <= first < start + len(segment):
                kept = self.form.read(segment[first - start : first - start + 1], rest)
            segment[max(0, first - start) : max(0, -(-end // self.form.tokens) - start)] = 0
        if kept is not None:
            self.write(tokens - rest, kept)

    def _segments(self) -> Iterator[tuple[int, Tensor]]:
        start = 0
        for segment in self.segments:
            yield start, segment
            start += len(segment)


class BlockPool(Blocks):
    """Segments that are allocated as they are needed."""

    def __init__(self, form: BlockForm, matrices: int, device: torch.device, tokens: int):
        self.form, self.matrices, self.device = form, matrices, device
        self._held: list[Tensor] = []
        self._table = torch.zeros(REACH, dtype=torch.int64, device=device)
        self.blocks = 0
        self.reserve(max(1, tokens))

    @property
    def segments(self) -> list[Tensor]:
        return self._held

    @property
    def table(self) -> Tensor:
        return self._table

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self._held, self.table))

    def reserve(self, tokens: int) -> None:
        wanted = -(-tokens // self.form.tokens)
        if wanted <= self.blocks:
            return
        more = max(wanted - self.blocks, self.blocks // 8)
        fresh = torch.zeros(more, self.matrices, self.form.nbytes, dtype=torch.uint8, device=self.device)
        self._held.append(fresh)
        while self.blocks + more >= len(self._table):  # one place more than blocks is read ahead
            self._table = torch.cat([self._table, torch.zeros_like(self._table)])
        self._enter(self.blocks, fresh)
        self.blocks += more

    def _enter(self, start: int, segment: Tensor) -> None:
        """Where a segment lies, whose first block is ``start``, into the table."""
        first = (segment.data_ptr() - self._held[0].data_ptr()) // ALIGNED if segment.device.type != "meta" else 0
        step = self.matrices * self.form.nbytes // ALIGNED
        places = torch.arange(len(segment), device=segment.device) * step + first
        self._table[start : start + len(segment)] = places

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy: its segments lie elsewhere."""
        self.__dict__.update(state)
        for start, segment in self._segments():
            self._enter(start, segment)


class RowBlocks(Blocks):
    """The records of ``matrices`` matrices of a pool, from the ``first`` on."""

    def __init__(self, pool: BlockPool, first: int, matrices: int):
        self.form, self.pool, self.first, self.matrices = pool.form, pool, first, matrices

    @property
    def segments(self) -> list[Tensor]:
        return [segment[:, self.first : self.first + self.matrices] for segment in self.pool.segments]

    @property
    def table(self) -> Tensor:
        return self.pool.table

    @property
    def nbytes(self) -> int:
        """Its share."""
        return self.pool.nbytes * self.matrices // self.pool.matrices

    def reserve(self, tokens: int) -> None:
        self.pool.reserve(tokens)
