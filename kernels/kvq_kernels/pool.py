"""Room for a growing matrix of blocks: records never move, and what is added to them is found through a table."""

from collections.abc import Iterator

import torch
from kvq_kernels.blocks import ALIGNED, BlockForm, Dense
from torch import Tensor

REACH = 8192  # blocks that a table has places for, a million tokens; more make a new one


class BlockPool:
    """Records of ``matrices`` matrices, in segments (blocks, matrices, bytes) uint8 that are allocated as they are
    needed. ``table`` int64: how many times 16 bytes a block's first record lies after the first record of all, which is
    how a kernel finds it whatever segment it is in.
    """

    def __init__(self, form: BlockForm, matrices: int, device: torch.device, tokens: int):
        self.form, self.matrices, self.device = form, matrices, device
        self.segments: list[Tensor] = []
        self.table = torch.zeros(REACH, dtype=torch.int64, device=device)
        self.blocks = 0
        self.reserve(max(1, tokens))

    @property
    def records(self) -> Tensor:
        """Where records begin."""
        return self.segments[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the segments and the table."""
        return sum(t.numel() * t.element_size() for t in (*self.segments, self.table))

    def reserve(self, tokens: int) -> None:
        """Have room for so many tokens. What is there already stays where it is."""
        wanted = -(-tokens // self.form.tokens)
        if wanted <= self.blocks:
            return
        more = max(wanted - self.blocks, self.blocks // 8)
        fresh = torch.zeros(more, self.matrices, self.form.nbytes, dtype=torch.uint8, device=self.device)
        self.segments.append(fresh)
        first = (fresh.data_ptr() - self.segments[0].data_ptr()) // ALIGNED if fresh.device.type != "meta" else 0
        while self.blocks + more >= len(self.table):  # one place more than blocks is read ahead
            self.table = torch.cat([self.table, torch.zeros_like(self.table)])
        step = self.matrices * self.form.nbytes // ALIGNED
        self.table[self.blocks : self.blocks + more] = torch.arange(more, device=self.device) * step + first
        self.blocks += more

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
        return self.form.read(parts[0] if len(parts) == 1 else torch.cat(parts or [self.records[:0]]), tokens)

    def _segments(self) -> Iterator[tuple[int, Tensor]]:
        start = 0
        for segment in self.segments:
            yield start, segment
            start += len(segment)
