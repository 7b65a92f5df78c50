"""``Tap``, which captures implement, and the scores of a decode step's layers that it is given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class StepScores:
    """Scores of a decode step in a few ``layers``: q.k * scaling, soft-capped where they do so, before the softmax.

    own (layers, 1 + lanes, query_heads, tokens, positions): the reference's and the forced rows' scores;
    with_reference_query, the same shape: the reference's query against each row's keys, where ``Tap.isolates`` asked
    for it; queries (layers, query_heads, tokens, head_dim): the reference's, after RoPE. Positions after a query's own
    are -inf. reads, by layer: of the rows that leave keys out of their softmax, the keys they read, bool
    (kv_heads, positions). sinks, by layer, where any has them: scores of nothing (query_heads,) beside them.
    """

    layers: list[int]
    own: Tensor
    with_reference_query: Tensor | None
    queries: Tensor
    reads: list[dict[int, Tensor]]
    sinks: Sequence[Tensor | None] = ()

    def first(self, rows: int) -> "StepScores":
        """Of the first rows alone, the reference's included; none of the others leaves keys out."""
        other = None if self.with_reference_query is None else self.with_reference_query[:, :rows]
        return StepScores(self.layers, self.own[:, :rows], other, self.queries, self.reads, self.sinks)

    def split(self, layers: int) -> Iterator["StepScores"]:
        """So many layers at once."""
        for start in range(0, len(self.layers), layers):
            now = slice(start, start + layers)
            other = None if self.with_reference_query is None else self.with_reference_query[now]
            given = self.layers[now], self.own[now], other, self.queries[now], self.reads[now], self.sinks[now]
            yield StepScores(*given)


class Tap(Protocol):
    """Sees the scores of a decode step as they are computed.

    On CPUs it is called in a thread of its own, in the layers' order, and is done before ``Rows.advance`` returns.
    """

    def isolates(self, fresh: int) -> bool:
        """Whether the coming step of ``fresh`` tokens is to be scored with the reference's query too, which shows what
        the keys alone do; that is half as much work again as scoring the rows with their own."""
        ...

    def scores(self, seen: StepScores) -> None: ...
