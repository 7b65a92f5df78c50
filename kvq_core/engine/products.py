"""Products whose every element is summed in one order, whatever else is computed beside it.

A codec rounds: a last digit that differs moves a code, the code what the next layer computes, and so on. So a lane's
figures would depend on the lanes beside it and on the size of its chunks, by a tenth and more where no window hides it,
if its sums did. On a CPU they depend on three things: libraries compute fewer than ROWS rows, and fewer than COLUMNS
columns, by other means than more of them, and a long sum is split where its length says. Few rows and columns are
therefore padded, and weights meet values BLOCK tokens after the other, from a multiple of BLOCK on. (Found by comparing
all sizes up to some hundred bit for bit, with torch's MKL and its AVX-512, AVX2 and SSE4.2 instructions; tests hold it.
Products with the model's weights are in models/stepping.py.)
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 4
COLUMNS = 16
BLOCK = 64  # twice as many, see ``add_mixed``, are still summed one after the other


def shared_tokens(frozen: int) -> int:
    """Of the first ``frozen`` tokens, which no later step changes, those that are held apart from the rest: whole
    blocks, so that sums are split at the same tokens whatever is held."""
    return frozen // BLOCK * BLOCK


def product(rows: Tensor, columns: Tensor, out: Tensor | None = None) -> Tensor:
    """rows (n, count, inner) @ columns (n, inner, width), into ``out`` where it is given."""
    count, width = rows.shape[1], columns.shape[2]
    if not _ordered(rows) or (count >= ROWS and width >= COLUMNS):
        return torch.bmm(rows, columns) if out is None else torch.bmm(rows, columns, out=out)
    if width < COLUMNS:
        columns = pad(columns, (0, COLUMNS - width))
    found = torch.bmm(_padded(rows), columns)[:, :count, :width]
    return found if out is None else out.copy_(found)


def scores(queries: Tensor, keys: Tensor) -> Tensor:
    """queries (rows, kv_heads, n, head_dim) over keys (rows, kv_heads, tokens, head_dim)."""
    return product(queries.flatten(0, 1), keys.flatten(0, 1).mT).unflatten(0, keys.shape[:2])


def add_values(out: Tensor, weights: Tensor, values: Tensor, first: bool) -> Tensor:
    """Add weights (n, rows, tokens) @ values (n, tokens, head_dim) to ``out`` (n, rows, head_dim), whose content is
    ignored if ``first``; values begin at a multiple of BLOCK."""
    rows, tokens = weights.shape[1:]
    if rows < ROWS and _ordered(out):
        return out.copy_(add_values(_padded(out), _padded(weights), values, first)[:, :rows])
    if first and not tokens:
        return out.zero_()
    size = BLOCK if _ordered(out) else max(1, tokens)
    for own, read in zip(weights.split(size, -1), values.split(size, 1), strict=True):
        _add(out, own, read, keep=not first)
        first = False
    return out


def add_mixed(out: Tensor, weights: Tensor, stored: Tensor, raw: Tensor, left: Tensor) -> Tensor:
    """``add_values`` to what ``out`` holds, where a row reads ``stored`` (n, tokens, head_dim) of the tokens that have
    ``left`` (n, rows, tokens), its first ones, and ``raw`` of those that follow them. A zero on the way changes no sum,
    so each is that of the values which the row reads, one after the other."""
    rows, tokens = weights.shape[1:]
    if rows < ROWS and _ordered(out):
        wide = add_mixed(_padded(out), _padded(weights), stored, raw, _padded(left))
        return out.copy_(wide[:, :rows])
    for start in range(0, tokens, BLOCK):
        now = slice(start, start + BLOCK)
        own, gone = weights[..., now], left[..., now]
        _add(out, torch.cat([own * gone, own * ~gone], -1), torch.cat([stored[:, now], raw[:, now]], 1), keep=True)
    return out


def _add(out: Tensor, weights: Tensor, values: Tensor, keep: bool) -> None:
    """One block's part; of few tokens padded, for of few numbers libraries make their sums otherwise, too."""
    if (missing := COLUMNS - values.shape[1]) > 0 and _ordered(out):
        weights, values = pad(weights, (0, missing)), pad(values, (0, 0, 0, missing))
    out.baddbmm_(weights, values, beta=int(keep))


def _ordered(x: Tensor) -> bool:
    """Whether its sums are kept in order: a GPU pays for launches, and promises none anyway."""
    return x.device.type == "cpu"


def _padded(x: Tensor) -> Tensor:
    """x (n, rows, ...) with ROWS rows at least."""
    return x if x.shape[1] >= ROWS else pad(x, (0, 0, 0, ROWS - x.shape[1]))
