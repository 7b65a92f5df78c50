"""A batch of prompts of different length, padded on the left: every row is a cache of its own and holds no padding."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from kvq_kernels import Path, Store, decode_step, join
from torch import Tensor

from kvq_core.models.scoring import Scoring

FEW = 32  # new tokens that are taken one by one, as the lane of a comparison takes them, and not by a dequantized cache


def in_steps(queries: Tensor, keys: Tensor, values: Tensor, held: Sequence[Store], how: Scoring, path: Path) -> Tensor:
    """A few new tokens, one after the other: each attends to the cache as it has become by then, and enters it.
    Shapes as of ``attend``; ``held``: keys and values."""
    tokens = zip(*(x.split(1, -2) for x in (queries, keys, values)), strict=True)
    outs = [decode_step(q, k, v, held[0], held[1], how.scaling, path).transpose(1, 2) for q, k, v in tokens]
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)


class RowCache(Protocol):
    """A layer's cache of one row."""

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def allocated(self) -> int: ...

    @property
    def host_bytes(self) -> int: ...

    @property
    def whole(self) -> list[Store]: ...

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor: ...

    def mark(self) -> list[Hashable]: ...

    def rewind(self, marks: Sequence[Hashable]) -> None: ...


@dataclass
class RaggedLayer:
    """``rows`` with so many tokens of padding before each of them. Padding attends to nothing, and its output is 0.
    ``whole``: keys and values of all rows, where a step is the launches of one; a prompt, and several tokens at once,
    are read row by row."""

    rows: Sequence[RowCache]
    padding: Sequence[int]
    whole: list[Store] = field(default_factory=list)

    @classmethod
    def of(cls, make: Callable[[], RowCache], padding: Sequence[int]) -> "RaggedLayer":
        """Empty rows."""
        return cls([make() for _ in padding], padding)

    @property
    def tokens(self) -> int:
        """Tokens entered, padding counted."""
        return max(row.tokens + pads if row.tokens else 0 for row, pads in zip(self.rows, self.padding, strict=True))

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def allocated(self) -> int:
        return sum(row.allocated for row in self.rows)

    @property
    def host_bytes(self) -> int:
        return sum(row.host_bytes for row in self.rows)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        """Store the new tokens and attend, as the layers do; in the first tokens lies the padding."""
        rows, heads, n, _ = queries.shape
        if self.whole and n <= FEW and how.plain:
            return in_steps(queries, keys, values, self.whole, how, self.whole[0].path)
        prompt = not self.tokens
        out = queries.new_zeros(rows, n, heads, values.shape[-1])
        for at, (row, pads) in enumerate(zip(self.rows, self.padding, strict=True)):
            own = 0 if row.tokens else pads
            q, k, v = (x[at : at + 1, :, own:] for x in (queries, keys, values))
            out[at : at + 1, own:] = row.attend(q, k, v, how)
        if prompt and all(row.whole for row in self.rows):
            self.whole = [join(stores) for stores in zip(*(row.whole for row in self.rows), strict=True)]
        return out

    def mark(self) -> list[Hashable]:
        """What ``rewind`` needs to forget what enters from now on."""
        return [tuple(row.mark()) for row in self.rows] if self.tokens else []

    def rewind(self, marks: Sequence[Hashable]) -> None:
        """Be as when the marks were made."""
        if not marks:  # the prompt had not come
            self.whole = []
        for row, mark in zip(self.rows, marks or [()] * len(self.rows), strict=True):
            assert isinstance(mark, tuple)
            row.rewind(mark)
