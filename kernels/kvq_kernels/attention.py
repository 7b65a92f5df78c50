"""Fused decode attention over a packed cache."""

from functools import cache
from math import ceil, e, log2
from typing import Any, NamedTuple

import torch
from kvq_kernels.blocks import CELL, PART, BlockForm
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.grouped import MODES
from kvq_kernels.launch import COMBINE, COMBINED, DECODE, Launch, programs_at_once, run
from kvq_kernels.layout import Layout
from kvq_kernels.signs import sign_places
from kvq_kernels.store import Store
from torch import Tensor

ROWS = 16  # query heads of a program, or NARROW where no more are needed
FEW, TURN = 64, 2  # channels for which a program's registers have room for so many parts of a block a turn, else one


def decode_attention(
    q: Tensor, keys: Store, values: Store, scaling: float, path: Path = "auto", how: Launch | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of one new token a row over the whole cache, which already holds that token.

    q (batch, query_heads, 1, head_dim) after RoPE -> the same shape and dtype, in ``out`` where it is given. Query head
    h reads KV head h // (query_heads / kv_heads). The reference dequantizes the cache into float32 and multiplies. With
    Triton, q and ``out`` in the same memory make a step the same two launches as the last, however long the cache is.
    """
    check(q, keys, values)
    if not use_triton("decode_attention", path, q, obstacle(keys.form) or obstacle(values.form)):
        found = attend_dense(q, keys, values, scaling)
        return found if out is None else out.copy_(found)
    from kvq_kernels.triton_ops.decode import combine_splits_kernel

    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    splits = attend_splits(q, keys, values, scaling, how)
    grid = splits.matrices, splits.heads, splits.chunks
    run(combine_splits_kernel, grid, COMBINE, splits.arguments(out), splits.constants())
    return out


def attend_dense(q: Tensor, keys: Store, values: Store, scaling: float) -> Tensor:
    """The reference: each row by itself, for rows may hold different numbers of tokens."""
    parts = []
    for row, key, value in zip(q.split(len(q) // len(keys.members)), keys.members, values.members, strict=True):
        grouped = row.float().reshape(len(row), key.sink.shape[1], -1, q.shape[-1])
        weights = torch.softmax(grouped @ key.dense().transpose(-1, -2) * scaling, -1)
        parts.append((weights @ value.dense()).reshape(row.shape))
    return torch.cat(parts).to(q.dtype)


class Splits(NamedTuple):
    """What the programs of a KV head found, to be combined: sums (matrices, parts, heads, dim), tops and totals."""

    acc: Tensor
    top: Tensor
    total: Tensor

    @property
    def matrices(self) -> int:
        return self.acc.shape[0]

    @property
    def heads(self) -> int:
        return self.acc.shape[2]

    @property
    def chunks(self) -> int:
        """Programs that share the channels of a head."""
        return ceil(self.acc.shape[-1] / COMBINED)

    def arguments(self, out: Tensor) -> dict[str, Any]:
        """Of the kernels that combine them."""
        _, parts, heads, dim = self.acc.shape
        found = {"acc_in": self.acc, "top_in": self.top, "total_in": self.total}
        return {**found, "out": out, "heads": heads, "dim": dim, "splits": parts}

    def constants(self) -> dict[str, Any]:
        return {"STEP": COMBINE.tokens, "CHANNELS": COMBINED}


def attend_splits(
    q: Tensor,
    keys: Store,
    values: Store,
    scaling: float,
    how: Launch | None,
    fresh: tuple[Tensor, Tensor] | None = None,
) -> Splits:
    """The launch that reads the cache. ``fresh``: key and value (batch, kv_heads, 1, head_dim) of a token that comes
    after all that is held."""
    from kvq_kernels.triton_ops.decode import decode_blocks_kernel
    from kvq_kernels.triton_ops.levels import NARROW

    batch, query_heads, _, dim = q.shape
    matrices, heads = batch * keys.sink.shape[1], query_heads // keys.sink.shape[1]
    tiles = matrices * ceil(heads / ROWS)
    parts = TURN if keys.form.channels <= FEW and keys.form.inner and values.form.inner else 1
    how = how or DECODE
    sinks, tails = _tails(keys.layout, values.layout, parts * PART)
    newest = fresh or (q, q)
    arguments = {
        "q": q.contiguous(), "norms": None if keys.norms is None else keys.norms.contiguous(),
        "places": _places(q.device), "acc_out": keys.widest, "top_out": keys.widest, "total_out": keys.widest,
        **tensors_of("k", keys, newest[0]), **tensors_of("v", values, newest[1]),
        "factor": scaling * log2(e), "heads": heads, "dim": dim, "splits": 1, "matrices": matrices,
    }  # fmt: skip
    constants = {
        "H": NARROW.value if heads <= NARROW.value else ROWS, "C": keys.form.channels // CELL,
        "TERMS": 2 if q.dtype == torch.float32 else 1,
        "HAS_NORMS": keys.norms is not None, "TAILS": tails, "SINKS": keys.layout.sinks, "SINK_TILES": sinks,
        "FRESH": fresh is not None, "PARTS": parts, **form_constants("K", keys.form),
        **form_constants("V", values.form),
    }  # fmt: skip
    splits = max(1, programs_at_once(decode_blocks_kernel, how, arguments, constants, q) // tiles)
    acc, top, total = _scratch(keys, (matrices, tails + splits, heads, dim))
    arguments |= {"acc_out": acc, "top_out": top, "total_out": total, "splits": splits}
    run(decode_blocks_kernel, (tiles, splits), how, arguments, constants)
    return Splits(acc, top, total)


@cache
def _places(device: torch.device) -> Tensor:
    """Where words of signs have each of 16 elements along the sum, those of a pair as the even one: int32 (16,)."""
    even = torch.arange(16) // 2 * 2
    return sign_places()[even].to(device)


def _scratch(store: Store, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Room for what splits find, kept with the store: sums of ``shape``, and a top and a total for each row of them."""
    if shape not in store.scratch:
        acc = torch.empty(shape, dtype=torch.float32, device=store.ring.device)
        top, total = torch.empty(2, *shape[:-1], dtype=torch.float32, device=store.ring.device)
        store.scratch[shape] = acc, top, total
    return store.scratch[shape]


def _tails(keys: Layout, values: Layout, turn: int) -> tuple[int, int]:
    """Tiles of 16 tokens: those of the sinks, and those with all that turns over ``turn`` tokens may not read."""
    sinks = ceil(keys.sinks / CELL)
    return sinks, sinks + ceil((turn - 1 + max(keys.recent + keys.step, values.recent + values.step)) / CELL)


def tensors_of(name: str, store: Store, fresh: Tensor) -> dict[str, Any]:
    """Arguments by which kernels find what a store holds, and its token that is new."""
    pool = store.pool
    tensors = {
        "records": pool.records.view(torch.int16), "table": pool.table, "widest": store.widest,
        "lengths": store.lengths, "sink": store.sink, "ring": store.ring, "fresh": fresh.contiguous(),
        "room": store.ring.shape[-2], "size": pool.form.nbytes // 16,
    }  # fmt: skip
    return {f"{name}_{key}": value for key, value in tensors.items()}


def form_constants(name: str, form: BlockForm) -> dict[str, Any]:
    """What a kernel that reads blocks of a form is compiled for."""
    grid = form.grid
    constants = {
        "BITS": grid.bits, "GROUP": grid.group_size, "MODE": MODES.index(grid.mode),
        "HALF_ZERO": grid.zero_point == torch.float16, "INNER": form.inner, "META": form.parts * form.step,
        "ROW": form.row, "STEP": form.step,
    }  # fmt: skip
    return {f"{name}_{key}": value for key, value in constants.items()}


def obstacle(form: BlockForm) -> str | None:
    """Why the kernels cannot read blocks of a form."""
    grid = form.grid
    if form.dim > 256:
        return f"head_dim = {form.dim} is larger than 256"
    if grid.group_size % CELL or form.tokens != 128:
        return f"group_size = {grid.group_size} is not a multiple of {CELL} that blocks of 128 tokens hold whole"
    if grid.mode != "asymmetric" and not form.inner:
        return f"groups in mode {grid.mode} are read along the sum only"
    if grid.scale != torch.float16 or (not form.inner and grid.zero_point != torch.float16):
        return "scales, and zero-points of groups across the sum, are read in float16"
    return None


def check(q: Tensor, keys: Store, values: Store) -> None:
    """Raises KernelError where queries, keys and values do not go together."""
    batch, heads, tokens, dim = q.shape
    if (keys.form.summed, values.form.summed) != ("channels", "tokens"):
        raise KernelError("A store of keys comes first, then one of values: each was made for its side.")
    if tokens != 1:
        raise KernelError(f"q has {tokens} tokens a row; decode attention takes one.")
    if keys.sink.shape[:2] != values.sink.shape[:2] or keys.sink.shape[0] != batch or heads % keys.sink.shape[1]:
        raise KernelError(
            f"q {tuple(q.shape)} does not fit caches of (batch, kv_heads) = {tuple(keys.sink.shape[:2])} and "
            f"{tuple(values.sink.shape[:2])}."
        )
    for key, value in zip(keys.members, values.members, strict=True):
        if (key.sink_tokens, key.later_tokens) != (value.sink_tokens, value.later_tokens) or not key.tokens:
            raise KernelError(
                f"keys hold {key.sink_tokens} sinks and {key.later_tokens} more tokens, values {value.sink_tokens} and "
                f"{value.later_tokens}; both need the same sinks and at least one token."
            )
    if dim != keys.sink.shape[-1]:
        raise KernelError(f"q has head_dim {dim}, the cache {keys.sink.shape[-1]}.")
