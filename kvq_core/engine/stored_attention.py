"""Tokens that are stored before they are read, while a chunk's enter together: what each of its queries sees.

A query at position i sees the cache as it is once its own token has entered: tokens that have left the window by then
as they are stored, first and newest ones in fp16. So the result does not depend on the chunk.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.codecs.window import Window
from kvq_core.engine import products
from kvq_core.engine.cache import KINDS, LaneCache
from kvq_core.models.scoring import Scoring

QUERIES = 128  # attended at once, which bounds the scores held


class StoredTokens:
    """What caches of codecs that are local to a token read. ``own`` and ``read`` throughout: keys and values of one
    layer, (lanes, kv_heads, tokens, head_dim), in fp16 and as they are read once they are stored."""

    def __init__(self, caches: list[LaneCache]):
        self._parts = [cache.by_layer() for cache in caches]

    def preview(self, layer: int, own: list[Tensor], read: list[Tensor], start: int) -> None:
        """Write into ``read`` how tokens from ``start`` on will be read once they have left the window."""
        for row, parts in enumerate(self._parts):
            for kind, x, out in zip(KINDS, own, read, strict=True):
                part, index = parts[layer][kind]
                first = max(start, part.plain.window.sink)
                if part.plain.window.step is not None and first < x.shape[-2]:
                    out[row, :, first:] = part.preview(x[row, :, first:], index, first)

    def attention(
        self,
        layer: int,
        queries: Tensor,
        own: list[Tensor],
        read: list[Tensor],
        how: Scoring,
        chosen: Mapping[int, Tensor],
    ) -> Tensor:
        """Attention of the last tokens: queries (lanes, query_heads, n, head_dim), the last n of the tokens, float32
        -> (lanes, n, query_heads, head_dim). ``chosen``: of lanes that leave keys out, those that they read, bool
        (kv_heads, tokens)."""
        lanes = []
        for row, parts in enumerate(self._parts):
            windows = [parts[layer][kind][0].plain.window for kind in KINDS]
            held = [(x[row], y[row]) for x, y in zip(own, read, strict=True)]
            lanes.append(_attention(queries[row], held, windows, how, chosen.get(row)))
        return torch.stack(lanes).transpose(1, 2)


def _attention(
    queries: Tensor, held: list[tuple[Tensor, Tensor]], windows: list[Window], how: Scoring, chosen: Tensor | None
) -> Tensor:
    """Of one lane, a few queries at a time: (query_heads, n, head_dim)."""
    n, total = queries.shape[-2], held[0][0].shape[-2]
    if (short := products.COLUMNS - total) > 0:  # of few scores the softmax sums otherwise, too
        held = [(pad(own, (0, 0, 0, short)), pad(read, (0, 0, 0, short))) for own, read in held]
    out = []
    for start in range(0, n, QUERIES):
        asked = queries[:, start : start + QUERIES]
        seen = torch.arange(total - n + start, total - n + start + asked.shape[-2], device=asked.device) + 1
        out.append(_attend(asked, seen, held, windows, how, chosen))
    return torch.cat(out, -2)


def _attend(
    queries: Tensor,
    seen: Tensor,
    held: list[tuple[Tensor, Tensor]],
    windows: list[Window],
    how: Scoring,
    chosen: Tensor | None,
) -> Tensor:
    """queries (query_heads, n, head_dim), of which each sees the first ``seen`` (n,) tokens."""
    total = max(products.COLUMNS, int(seen[-1]))
    (own_keys, keys), (own_values, values) = ((own[:, :total], read[:, :total]) for own, read in held)
    grouped = queries.unflatten(0, (len(keys), -1)).flatten(1, 2)  # (kv_heads, groups * n, head_dim)
    shape = (len(keys), -1, len(seen), total)
    first, exact = _exact(windows[0], seen, total)
    scores = products.product(grouped, keys.mT).view(shape)
    if exact is not None:
        raw = products.product(grouped, own_keys[:, first:].mT).reshape(*shape[:-1], total - first)
        scores[..., first:] = torch.where(exact, raw, scores[..., first:])
    weights = how.softmax(_hide(how.capped_(scores.mul_(how.scaling)), seen, how, chosen))
    first, exact = _exact(windows[1], seen, total)
    same = first // products.BLOCK * products.BLOCK if exact is not None else total
    flat = weights.flatten(1, 2)
    out = flat.new_empty(*flat.shape[:-1], values.shape[-1])
    out = products.add_values(out, flat[..., :same], values[:, :same], first=True)
    if exact is not None:
        left = pad(~exact, (first - same, 0), value=True).expand(*weights.shape[:2], -1, -1).flatten(1, 2)
        out = products.add_mixed(out, flat[..., same:], values[:, same:], own_values[:, same:], left)
    return out.unflatten(1, (-1, len(seen))).flatten(0, 1)


def _hide(scores: Tensor, seen: Tensor, how: Scoring, chosen: Tensor | None) -> Tensor:
    """Scores (kv_heads, groups, n, tokens) in place, none of what their queries do not see."""
    total, behind = scores.shape[-1], how.behind(seen, scores.shape[-1])
    if chosen is not None:
        left_out = ~pad(chosen, (0, max(0, total - chosen.shape[-1])))[:, None, None, :total]
        behind = left_out if behind is None else left_out | behind
    if behind is not None:
        scores.masked_fill_(behind, float("-inf"))
    first = int(seen[0])  # tokens that all of them see
    later = torch.arange(first, total, device=seen.device) >= seen[:, None]
    scores[..., first:].masked_fill_(later, float("-inf"))
    return scores


def _exact(window: Window, seen: Tensor, total: int) -> tuple[int, Tensor | None]:
    """Which tokens from the first one returned on a query reads in fp16, bool (n, tokens); None where there are none.

    First tokens, and layers that are left alone, read so whatever the query: they lie in ``read`` as they are.
    """
    if window.step is None:
        return total, None
    left = [window.sink + window.packed(n) for n in seen.tolist()]
    first = min(left)
    if all(exact >= sees for exact, sees in zip(left, seen.tolist(), strict=True)):  # none that it sees
        return total, None
    at = torch.arange(first, total, device=seen.device)
    return first, at >= torch.tensor(left, device=seen.device)[:, None]
