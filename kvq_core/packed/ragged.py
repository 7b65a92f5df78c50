"""A batch of prompts of different length, padded on the left: every row is a cache of its own and holds no padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvq_core.models.scoring import Scoring


class Row(Protocol):
    """A layer's cache of one row."""

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def allocated(self) -> int: ...

    @property
    def host_bytes(self) -> int: ...

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor: ...


@dataclass
class RaggedLayer:
    """``rows`` with so many tokens of padding before each of them. Padding attends to nothing, and its output is 0."""

    rows: Sequence[Row]
    padding: Sequence[int]

    @classmethod
    def of(cls, make: Callable[[], Row], padding: Sequence[int]) -> "RaggedLayer":
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
        out = queries.new_zeros(rows, n, heads, values.shape[-1])
        for at, (row, pads) in enumerate(zip(self.rows, self.padding, strict=True)):
            own = 0 if row.tokens else pads
            q, k, v = (x[at : at + 1, :, own:] for x in (queries, keys, values))
            out[at : at + 1, own:] = row.attend(q, k, v, how)
        return out
