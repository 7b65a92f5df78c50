"""Tokens that are known beforehand, fed in passes of several: every query reads what it would read one by one.

What the forced rows of a finished answer read depends on the layer's own tokens alone where codecs do: a layer's keys
and values of a whole pass are known before it attends, and with them what each query's step would find encoded. So the
weights are read once a pass in place of once a token. Codecs whose codes are a token's alone (``Part.local``) tell what
is read of each; others' passes end where tokens leave their window, so that a pass's queries find the cache as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.codecs.stream import Stream
from kvq_core.engine import products
from kvq_core.engine.cache import KINDS, LaneCache
from kvq_core.models.head import POSITIONS
from kvq_core.models.scoring import Scoring

MOST = 64  # tokens of a pass: more of them would read the weights hardly less often
SCORES = 1 << 27  # bytes that a layer's scores of a pass may take
READ = 64  # hidden states that the head reads at once, of all rows: of more it takes as long for each
FEWEST = 4  # tokens of a pass on average, below which one by one is as fast


def pass_tokens(rows: int, query_heads: int, positions: int) -> int:
    """The most tokens of a pass of so many rows, which see so many positions."""
    return max(1, min(MOST, SCORES // (4 * rows * query_heads * positions)))


def read_at_once(rows: int) -> int:
    """Tokens of each of so many rows that the head reads at once."""
    return max(1, min(POSITIONS, READ // rows))


@dataclass
class Reread:
    """Of a layer's tails from ``start`` on: what is read there in place of tokens that leave their window during the
    pass, ``stored`` (rows, kv_heads, n, head_dim), by the queries for which they have, ``left`` (rows, fresh, n)."""

    start: int
    stored: Tensor
    left: Tensor

    def scores_(self, scores: Tensor, queries: Tensor) -> None:
        """Correct scores (rows, kv_heads, groups * fresh, tail) of queries (rows, kv_heads, groups * fresh, head_dim),
        in place."""
        at = scores.unflatten(2, (-1, self.left.shape[1]))[..., self.start : self.start + self.left.shape[2]]
        anew = products.scores(queries, self.stored).unflatten(2, (-1, self.left.shape[1]))
        at.copy_(torch.where(self.left[:, None, None], anew, at))

    def add(self, out: Tensor, weights: Tensor, tails: Tensor) -> Tensor:
        """``products.add_values`` of what is read: weights (rows, kv_heads, groups * fresh, tail), tails (rows,
        kv_heads, tail, head_dim), and so ``out``, of which the first two dimensions are one."""
        fresh, end = self.left.shape[1], self.start + self.left.shape[2]
        first, last = self.start // products.BLOCK * products.BLOCK, -(-end // products.BLOCK) * products.BLOCK
        stored = tails[:, :, first:last].clone()
        stored[:, :, self.start - first : end - first] = self.stored
        before = pad(self.left, (self.start - first, 0), value=True)
        left = pad(before, (0, stored.shape[2] - before.shape[2]))
        left = left[:, None, None].expand(-1, *weights.shape[1:2], weights.shape[2] // fresh, -1, -1).flatten(2, 3)
        weights, tails, stored, left = (x.flatten(0, 1) for x in (weights, tails, stored, left))
        out = products.add_values(out, weights[..., :first], tails[:, :first], first=False)
        out = products.add_mixed(out, weights[..., first:last], stored, tails[:, first:last], left)
        return products.add_values(out, weights[..., last:], tails[:, last:], first=False)


def read(out: Tensor, weights: Tensor, tails: Tensor, anew: Reread | None) -> Tensor:
    """out + weights @ tails (rows, kv_heads, ...), or what is read ``anew`` in their place."""
    flat = out.flatten(0, 1)
    if anew is None:
        found = products.add_values(flat, weights.flatten(0, 1), tails.flatten(0, 1), first=False)
    else:
        found = anew.add(flat, weights, tails)
    return found.unflatten(0, out.shape[:2])


class Ahead:
    """The forced rows of some caches, in the order of their rows from ``first`` on."""

    def __init__(self, caches: Sequence[LaneCache], first: int):
        self._caches, self._first = caches, first
        self._parts = [cache.by_layer() for cache in caches]
        self.failed: dict[int, Exception] = {}  # rows of which could not be told what they read

    def passes(self, tokens: int, most: int = MOST) -> list[int] | None:
        """How many of so many known ``tokens`` each pass takes, at ``most``; None where one by one is as fast."""
        ends = self._ends(tokens)
        if ends is None:
            return None
        starts = [0, *sorted(ends | {*range(most, tokens, most), tokens})]
        sizes = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        return sizes if len(sizes) * FEWEST <= tokens else None

    @property
    def knows_reads(self) -> bool:
        """Whether it is known beforehand what queries read."""
        return self._ends(1) is not None

    def _ends(self, tokens: int) -> set[int] | None:
        """After how many of the next tokens a pass has to end; None where it takes one."""
        ends = set[int]()
        for cache in self._caches:
            for part in cache.parts:
                if cache.observes or cache.selects or cache.unchosen or not isinstance(part.stream, Stream):
                    return None
                if not part.local:
                    left = part.stream.boundaries(tokens)
                    ends |= {at for at in range(1, tokens) if left[at] != left[at - 1]}
        return ends

    def reread(self, layer: int, kind: int, tails: Tensor, prefix: int, fresh: int) -> Reread | None:
        """What is read of a layer's tails (rows, kv_heads, tokens, head_dim) of keys (``kind`` 0) or values (1), which
        begin after ``prefix`` tokens and end with the ``fresh`` ones of the pass; None where no token leaves."""
        found = dict[int, list[int]]()  # by row: where the encoded tokens end before the pass, and for each query
        for row, parts in enumerate(self._parts, self._first):
            part = parts[layer][KINDS[kind]][0]
            ends = part.plain.boundaries(fresh)
            after = int(self._caches[row - self._first].stored_first)  # its own token has entered when it is read
            if part.local and ends[fresh - 1 + after] > ends[0] and row not in self.failed:
                found[row] = [ends[0], *ends[after : after + fresh]]
        if not found:
            return None
        start, end = min(ends[0] for ends in found.values()), max(ends[-1] for ends in found.values())
        stored = tails[:, :, start - prefix : end - prefix].clone()
        left = torch.zeros(len(tails), fresh, end - start, dtype=torch.bool, device=tails.device)
        for row, (first, *ends) in found.items():
            part, index = self._parts[row - self._first][layer][KINDS[kind]]
            now = slice(first - start, ends[-1] - start)
            try:
                stored[row, :, now] = part.preview(stored[row, :, now], index, first).to(stored.dtype)
            except Exception as error:  # whatever a method does wrong is its lane's failure, not the run's
                self.failed[row] = error
                continue
            at, until = (torch.tensor(x, device=left.device) for x in (range(start, end), ends))
            left[row] = at < until[:, None]  # those before its first are read as they lie in the tails
        return Reread(start - prefix, stored, left)

    def attention(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        """Attention of the last n tokens over all that a layer's rows read: queries (rows, query_heads, n, head_dim) as
        they meet keys, keys and values (rows, kv_heads, tokens, head_dim), float32 -> (rows, n, query_heads, head_dim).
        """
        n, total = queries.shape[-2], keys.shape[-2]
        of_keys, of_values = (self.reread(layer, kind, x, 0, n) for kind, x in enumerate((keys, values)))
        asked = queries.reshape(len(keys), keys.shape[1], -1, keys.shape[-1])
        scores = products.scores(asked, keys)
        if of_keys is not None:
            of_keys.scores_(scores, asked)
        hidden = how.unseen(n, total, keys.device)
        scores = how.capped_(scores.unflatten(2, (-1, n)) * how.scaling).masked_fill_(hidden, float("-inf"))
        weights = how.softmax(scores).flatten(2, 3)
        out = read(weights.new_zeros(*weights.shape[:-1], values.shape[-1]), weights, values, of_values)
        return out.unflatten(2, (-1, n)).flatten(1, 2).transpose(1, 2)
