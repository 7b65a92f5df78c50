"""Packed groups as products read them: codes lie along the dimension that is summed over, in blocks of whole tokens.

A block is one record of bytes: codes, 64 tokens after the others, then for each group a row of scales and one of
zero-points; of groups along the sum, whose signs lie there too, scales beside zero-points or beside those of the next
group, so that no number that a kernel loads is of 2 bytes. Codes of 64 tokens are cut into cells of 16 x 16, ``summed``
by other elements, and a word of 16 bits holds the codes of as many cells as fit at one place of the cell. A matrix
product over 16 summed elements therefore finds its operand in the words by one mask, in the order in which tensor cores
want it, whatever the width of the codes and the size of a head.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, lcm
from typing import NamedTuple

import torch
from kvq_kernels.grouped import Axis, Grid
from kvq_kernels.packing import packed_bytes
from kvq_kernels.signs import complemented, signed
from torch import Tensor

CELL = 16  # elements along either side of a cell: what a matrix product sums over at once
TOKENS, PART = (
    128,
    64,
)  # of a block, where groups of tokens allow it; and of its parts, which are read one after another
ALIGNED = 16  # bytes: sections and records begin at multiples, so that 16 are copied at once
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 8: (8,)}  # widths that fill words, low bits first


class Section(NamedTuple):
    """Where a part of a record lies: its first byte, and its rows of so many elements of a type, each at ``place`` of
    ``every`` such elements."""

    start: int
    rows: int
    columns: int
    dtype: torch.dtype
    place: int = 0
    every: int = 1

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns * self.every * self.dtype.itemsize

    def of(self, records: Tensor) -> Tensor:
        """Its elements in records (..., bytes) uint8: a view (..., rows, columns)."""
        elements = records[..., self.start : self.end].view(self.dtype)
        return elements.unflatten(-1, (self.rows, self.columns, self.every))[..., self.place]


class Dense(NamedTuple):
    """A tensor's codes (..., rows, elements) uint8, the grouped dimension last, with its scales and zero-points or
    words of signs as ``PackedGroups`` has them."""

    codes: Tensor
    scales: Tensor
    words: Tensor


@dataclass(frozen=True)
class BlockForm:
    """How a matrix (tokens, ``dim`` channels) of groups along ``axis`` is laid out for a product that sums over
    ``summed``: channels for keys, tokens for values."""

    grid: Grid
    axis: Axis
    summed: Axis
    dim: int

    @property
    def inner(self) -> bool:
        """Whether a group lies along the sum."""
        return self.axis == self.summed

    @cached_property
    def tokens(self) -> int:
        """Tokens of a block: whole groups and whole cells."""
        whole = lcm(CELL, self.grid.group_size) if self.axis == "tokens" else CELL
        return whole * ceil(TOKENS / whole)

    @property
    def channels(self) -> int:
        """Channels of a block: those there are, filled up to whole cells."""
        return CELL * ceil(self.dim / CELL)

    @property
    def parts(self) -> int:
        """Parts of a block, whose codes lie one after the other."""
        return self.tokens // PART if self.tokens == TOKENS else 1

    @property
    def sides(self) -> tuple[int, int]:
        """Elements of a part along the sum, and across it."""
        tokens = self.tokens // self.parts
        return (self.channels, tokens) if self.summed == "channels" else (tokens, self.channels)

    @property
    def cells(self) -> int:
        """Of a part."""
        along, across = self.sides
        return along * across // CELL**2

    @property
    def main(self) -> int:
        """Cells along the sum that come first: as many as use all places of a byte alike, so that an element of the sum
        has one place whatever it is multiplied with, and what meets it one power of two."""
        places = 8 // PLANES[self.grid.bits][0]
        return self.sides[0] // CELL // places * places

    @property
    def groups(self) -> int:
        """Groups along the grouped dimension of a block."""
        return ceil((self.tokens if self.axis == "tokens" else self.dim) / self.grid.group_size)

    @cached_property
    def planes(self) -> tuple[tuple[int, Section], ...]:
        """Codes of the first part: the width of a plane, and its words, a row for the cells that share them."""
        found, start = [], 0
        for bits in PLANES[self.grid.bits]:
            found.append((bits, Section(start, ceil(self.cells * bits / CELL), CELL**2, torch.int16)))
            start = found[-1][1].end
        return tuple(found)

    @property
    def step(self) -> int:
        """Bytes from the codes of a part to those of the next."""
        return self.planes[-1][1].end

    @cached_property
    def meta(self) -> tuple[Section, ...]:
        """Of every group its scales, one for each element of the other dimension, then its zero-points or its words of
        signs: pairs of sections."""
        columns = self.channels if self.axis == "tokens" else self.tokens
        start, signed = self.parts * self.step, self.grid.mode != "asymmetric"
        rows, kind = (self.grid.words, torch.int32) if signed else (1, self.grid.zero_point)
        found = []
        for g in range(self.groups):
            if not self.inner:
                scale = Section(start, 1, columns, self.grid.scale)
                found += [scale, Section(scale.end, rows, columns, kind)]
            elif not signed and kind == self.grid.scale:
                found += [Section(start, 1, columns, kind, place, 2) for place in (0, 1)]
            elif g % 2:  # scales of the group before have left place for these
                found += [found[-2]._replace(place=1), Section(start, rows, columns, kind)]
            else:
                scale = Section(start, 1, columns, self.grid.scale, 0, 2)
                found += [scale, Section(scale.end, rows, columns, kind)]
            start = found[-1].end
        return tuple(found)

    @property
    def row(self) -> int:
        """Bytes from the scales of a group to those of the next; of groups along the sum whose scales lie beside each
        other, of two groups."""
        wide = self.meta[0].every == 2 and self.meta[1].every == 1
        return (1 + wide) * (self.meta[1].end - self.meta[0].start) - wide * (self.meta[0].end - self.meta[0].start)

    @property
    def nbytes(self) -> int:
        """Bytes of a record."""
        return -(-self.meta[-1].end // ALIGNED) * ALIGNED

    def write(self, records: Tensor, first: int, fresh: Dense) -> None:
        """Enter tokens into records (blocks, matrices, bytes) uint8, from token ``first`` of the first of them on.

        ``fresh`` (matrices, ...): whole groups of tokens, or whole tokens, whose places hold nothing yet.
        """
        by_token = self.axis == "channels"
        fresh = Dense(*complemented(*fresh, self.grid))
        codes = fresh.codes.mT if self.axis == "tokens" else fresh.codes  # (matrices, tokens, dim)
        n, blocks = codes.shape[-2], len(records)
        whole = codes.new_zeros(len(codes), blocks * self.tokens, self.channels)
        whole[:, first : first + n, : self.dim] = codes
        whole = whole.unflatten(1, (blocks, self.tokens)).transpose(0, 1)
        self._or_codes(records, whole)
        per = 1 if by_token else self.grid.group_size
        spans = [(b, max(first, b * self.tokens), min(first + n, (b + 1) * self.tokens)) for b in range(blocks)]
        for block, begin, end in spans:
            at, taken = begin - block * self.tokens, begin - first
            here = (
                slice(at // per, -(-(at + end - begin) // per)),
                slice(taken // per, -(-(taken + end - begin) // per)),
            )
            self._put(records[block], *here, fresh)

    def cut(self, fresh: Dense, begin: int, end: int) -> Dense:
        """Tokens ``begin`` to ``end``, whole groups or the last ones."""
        if self.axis == "channels":
            return Dense(*(part[:, begin:end] for part in fresh))
        first, last = begin // self.grid.group_size, -(-end // self.grid.group_size)
        rows = self.meta[1].rows
        words = fresh.words[..., first * rows : last * rows]
        return Dense(fresh.codes[..., begin:end], fresh.scales[..., first:last], words)

    def held(self, tokens: int) -> int:
        """Bytes that so many tokens of one matrix take: codes, scales and zero-points or signs."""
        grid, by_token = self.grid, self.axis == "channels"
        rows, count = (tokens, self.dim) if by_token else (self.dim, tokens)
        groups = -(-count // grid.group_size)
        word = grid.zero_point.itemsize if grid.mode == "asymmetric" else 4 * grid.words
        return rows * (packed_bytes(count, grid.bits) + groups * (grid.scale.itemsize + word))

    def read(self, records: Tensor, tokens: int) -> Dense:
        """The first ``tokens`` of records (blocks, matrices, bytes), the inverse of ``write``."""
        codes = self._codes(records)[..., : self.dim].transpose(0, 1).flatten(1, 2)[:, :tokens]
        by_token = self.axis == "channels"
        scales, words = ([s.of(records) for s in self.meta[i::2]] for i in (0, 1))
        columns = tokens if by_token else self.dim
        if by_token:  # (blocks, matrices, rows, tokens) -> (matrices, tokens, groups)
            found = [torch.cat(part, -2).transpose(0, 1).transpose(1, 2).flatten(2, 3).mT for part in (scales, words)]
            found = [part[:, :columns] for part in found]
        else:  # (blocks, matrices, rows, channels) -> (matrices, channels, groups)
            found = [torch.cat(part, -2).transpose(0, 1).flatten(1, 2).mT[:, :columns] for part in (scales, words)]
            groups = -(-tokens // self.grid.group_size)
            found = [found[0][..., :groups], found[1][..., : groups * self.meta[1].rows]]
        scale, word = (part.contiguous() for part in found)
        return Dense(*signed(codes if by_token else codes.mT, scale, word, self.grid))

    def _put(self, record: Tensor, into: slice, taken: slice, fresh: Dense) -> None:
        """Scales and words of tokens (or groups of them) ``taken`` into those of one block's record."""
        rows = self.meta[1].rows
        if self.axis == "channels":
            for g in range(self.groups):
                scale, word = self.meta[2 * g : 2 * g + 2]
                scale.of(record)[:, 0, into] = fresh.scales[:, taken, g]
                word.of(record)[:, :, into] = fresh.words[:, taken, g * rows : (g + 1) * rows].mT
            return
        for g, source in zip(range(into.start, into.stop), range(taken.start, taken.stop), strict=True):
            scale, word = self.meta[2 * g : 2 * g + 2]
            scale.of(record)[:, 0, : self.dim] = fresh.scales[..., source]
            word.of(record)[:, :, : self.dim] = fresh.words[..., source * rows : (source + 1) * rows].mT

    def _cells(self, x: Tensor) -> Tensor:
        """(..., tokens, channels) -> (..., parts, cells, 16 across, 16 along): cells along the sum first, ``main`` of
        them, and the rest after all of these."""
        by_part = x.unflatten(-2, (self.parts, -1))
        rows = by_part if self.summed == "channels" else by_part.mT  # (..., across, along)
        along, across = self.sides
        pieces = rows.unflatten(-1, (along // CELL, CELL)).unflatten(-3, (across // CELL, CELL))
        pieces = pieces.transpose(-3, -2)
        return torch.cat([part.flatten(-4, -3) for part in pieces.tensor_split([self.main], -3)], -3)

    def _words(self, records: Tensor, plane: Section) -> Tensor:
        """A plane of all parts: a view (..., parts, rows, 256)."""
        codes = records[..., : self.parts * self.step].unflatten(-1, (self.parts, self.step))
        return plane.of(codes)

    def _or_codes(self, records: Tensor, codes: Tensor) -> None:
        cells, below = self._cells(codes), 0
        for bits, section in self.planes:
            each = CELL // bits
            part = ((cells >> below) & ((1 << bits) - 1)).flatten(-2)
            part = torch.nn.functional.pad(part, (0, 0, 0, section.rows * each - self.cells))
            part = part.unflatten(-2, (section.rows, each)).to(torch.int32)
            words = (part << (torch.arange(each, device=part.device) * bits)[:, None]).sum(-2)
            self._words(records, section).bitwise_or_(words.to(torch.int16))
            below += bits

    def _codes(self, records: Tensor) -> Tensor:
        """Codes (blocks, matrices, tokens, channels) uint8."""
        along, across = self.sides
        cells, below = None, 0
        for bits, section in self.planes:
            each = CELL // bits
            words = self._words(records, section).to(torch.int32).unsqueeze(-2)
            part = (words >> (torch.arange(each, device=records.device) * bits)[:, None]) & ((1 << bits) - 1)
            part = part.to(torch.uint8).flatten(-3, -2)[..., : self.cells, :] << below
            cells = part if cells is None else cells | part
            below += bits
        assert cells is not None
        parts = cells.unflatten(-1, (CELL, CELL)).tensor_split([self.main * across // CELL], -3)
        sizes = (self.main, along // CELL - self.main)
        pieces = torch.cat([x.unflatten(-3, (across // CELL, n)) for x, n in zip(parts, sizes, strict=True)], -3)
        rows = pieces.transpose(-3, -2).flatten(-4, -3).flatten(-2)
        return (rows if self.summed == "channels" else rows.mT).flatten(-3, -2)
