"""Queries as each row's keys meet them, and attention of rows whose keys are only in part those of the cache."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvq_core.codecs.queries import QueryRounding
from kvq_core.engine.row_part import LayerStep, RowPart
from kvq_core.models.scoring import Scoring

Roundings = dict[int, QueryRounding]  # by model layer


class RoundedQueries(RowPart):
    """Queries of rows as their lanes' keys meet them: a rule rounds those of all its rows in one call."""

    def __init__(self, roundings: Sequence[Roundings]):
        """Those of every lane, the reference's first."""
        self._of_lane = roundings
        self._lane_of: list[int] = []
        self._rows: dict[tuple[bool, ...], Tensor] = {}  # which rows a rule is of, (rows, 1, 1, 1)

    def reindex(self, lane_of: Sequence[int]) -> None:
        self._lane_of, self._rows = list(lane_of), {}

    def before(self, step: LayerStep) -> None:
        step.asked = self(step.held_by, step.asked)

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """queries (rows, query_heads, n, head_dim) after RoPE, not yet scaled, float32."""
        own = [self._of_lane[lane].get(layer) for lane in self._lane_of]
        for rounding in {id(each): each for each in own if each is not None}.values():
            rows = tuple(each is rounding for each in own)
            if rows not in self._rows:
                self._rows[rows] = torch.tensor(rows, device=queries.device).view(-1, 1, 1, 1)
            queries = torch.where(self._rows[rows], rounding(queries), queries)
        return queries


def chunk_attention(
    queries: Tensor,
    met: Tensor,
    keys: Tensor,
    values: Tensor,
    how: Scoring,
    read: Tensor | None = None,
    look: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Attention of a chunk's n tokens, the last ones, whose own keys are not the cache's yet: those meet ``queries``,
    the cache's meet them as they are ``met``. queries, met (query_heads, n, head_dim); keys, values (kv_heads, tokens,
    head_dim) -> (n, query_heads, head_dim), all float32, of a layer that scores so. ``read``: bool (kv_heads, tokens),
    where some keys are left out; ``look`` is shown the weights (kv_heads, groups, n, tokens)."""
    n, total = queries.shape[-2], keys.shape[-2]
    asked = torch.stack([met, queries]).unflatten(1, (len(keys), -1))  # (2, kv_heads, groups, n, head_dim)
    earlier, own = keys.split([total - n, n], -2)
    scores = torch.cat([asked[0] @ earlier[:, None].mT, asked[1] @ own[:, None].mT], -1) * how.scaling
    hidden = how.unseen(n, total, keys.device)
    hidden = hidden if read is None else hidden | ~read[:, None, None]
    weights = how.softmax(how.capped_(scores).masked_fill_(hidden, float("-inf")))
    if look is not None:
        look(weights)
    return (weights @ values[:, None]).flatten(0, 1).transpose(0, 1)
