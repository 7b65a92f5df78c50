"""Fused decode attention over a packed cache."""

from math import e, log2
from typing import Any

import torch
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.gemv import compute_type
from kvq_kernels.grouped import Axis, grid_constants, row_strides
from kvq_kernels.launch import (
    COMBINE,
    DECODE,
    PLACES,
    Launch,
    power_of_two,
    run,
    split_tokens,
    tile_of,
)
from kvq_kernels.placing import Operand, place_tiles
from kvq_kernels.store import Store
from torch import Tensor


def decode_attention(
    q: Tensor, keys: Store, values: Store, scaling: float, path: Path = "auto", how: Launch | None = None
) -> Tensor:
    """Attention of one new token a row over the whole cache, which already holds that token.

    q (batch, query_heads, 1, head_dim) after RoPE -> the same shape and dtype. Query head h reads KV head
    h // (query_heads / kv_heads). The reference dequantizes the cache into float32 and multiplies. Keys that are far
    from zero (Store.far) are multiplied with float32 queries.
    """
    _check(q, keys, values)
    if keys.far and q.dtype != torch.float32:
        return decode_attention(q.float(), keys, values, scaling, path, how).to(q.dtype)
    batch, heads, _, dim = q.shape
    kv_heads = keys.sink.shape[1]
    if not use_triton("decode_attention", path, q, _obstacle(keys, values, heads // kv_heads)):
        grouped = q.float().reshape(batch, kv_heads, -1, dim)
        weights = torch.softmax(grouped @ keys.dense("torch").transpose(-1, -2) * scaling, -1)
        return (weights @ values.dense("torch")).reshape(q.shape).to(q.dtype)
    return _decode_triton(q, keys, values, scaling, how)


def _decode_triton(q: Tensor, keys: Store, values: Store, scaling: float, how: Launch | None) -> Tensor:
    from kvq_kernels.triton_ops.attention import combine_splits_kernel, decode_attention_kernel

    batch, query_heads, _, dim = q.shape
    matrices, heads = batch * keys.sink.shape[1], query_heads // keys.sink.shape[1]
    fits = place_tiles(q, heads, dim, how or PLACES, _operand(keys, "channels"), _operand(values, "tokens"))
    how = how or (PLACES if fits else DECODE)
    small, wide = tile_of(how, dim, max(keys.layout.grid.group_size, values.layout.grid.group_size))
    tile = small
    if fits:
        tile, small, wide = how.tokens, 32, fits.channels
    bulk = min(keys.packed_tokens, values.packed_tokens) // tile * tile
    chunk, whole = split_tokens(bulk, tile, matrices, q)
    tails = sum(-(-tokens // small) for tokens in (keys.sink_tokens, keys.later_tokens - bulk))
    splits = tails + whole
    acc = torch.empty(matrices, splits, heads, dim, dtype=torch.float32, device=q.device)
    top, total = torch.empty(2, matrices, splits, heads, dtype=torch.float32, device=q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    run(
        decode_attention_kernel,
        (matrices, splits),
        how,
        {
            "q": q.contiguous(), "norms": None if keys.norms is None else keys.norms.contiguous(), "acc_out": acc,
            "top_out": top, "total_out": total, **_tensors("k", keys), **_tensors("v", values),
            "v_largest": values.largest,
            "factor": scaling * log2(e), "heads": heads, "dim": dim, "bulk": bulk, "chunk": chunk, "splits": splits,
            "tails": tails, "sinks": keys.sink_tokens, "sink_room": keys.sink.shape[-2], "held": keys.later_tokens,
        },
        {
            "M": max(16, power_of_two(heads)), "BT": small, "DP": wide, "HAS_NORMS": keys.norms is not None,
            "DTYPE": compute_type(q), **_constants("K", keys), **_constants("V", values),
            "PLACED": tile if fits else 0, "H": fits.rows if fits else 0, "EXACT": dim == wide,
        },
    )  # fmt: skip
    run(
        combine_splits_kernel,
        (matrices, heads),
        COMBINE,
        {"acc_in": acc, "top_in": top, "total_in": total, "out": out, "heads": heads, "dim": dim, "splits": splits},
        {"STEP": COMBINE.tokens, "DP": wide},
    )
    return out


def _operand(store: Store, inner: Axis) -> Operand:
    return Operand(store.packed, store.layout.grid, store.layout.axis, inner)


def _tensors(name: str, store: Store) -> dict[str, Any]:
    tensors = {**store.packed._asdict(), "sink": store.sink, "ring": store.ring, **row_strides(store.packed)}
    counts = {"packed": store.packed_tokens, "room": store.ring.shape[-2]}
    return {f"{name}_{key}": value for key, value in {**tensors, **counts}.items()}


def _constants(name: str, store: Store) -> dict[str, Any]:
    grid = store.layout.grid
    constants = {**grid_constants(grid), "BY_TOKEN": store.layout.axis == "channels", "WIDTH": grid.places}
    return {f"{name}_{key}": value for key, value in constants.items()}


def _obstacle(keys: Store, values: Store, heads: int) -> str | None:
    if keys.sink.shape[-1] > 256:
        return f"head_dim = {keys.sink.shape[-1]} is larger than 256"
    if heads > 64:
        return f"{heads} query heads share a KV head, and a program holds 64"
    return keys.layout.grid.obstacle or values.layout.grid.obstacle


def _check(q: Tensor, keys: Store, values: Store) -> None:
    batch, heads, tokens, dim = q.shape
    if tokens != 1:
        raise KernelError(f"q has {tokens} tokens a row; decode attention takes one.")
    if keys.sink.shape[:2] != values.sink.shape[:2] or keys.sink.shape[0] != batch or heads % keys.sink.shape[1]:
        raise KernelError(
            f"q {tuple(q.shape)} does not fit caches of (batch, kv_heads) = {tuple(keys.sink.shape[:2])} and "
            f"{tuple(values.sink.shape[:2])}."
        )
    if (keys.sink_tokens, keys.later_tokens) != (values.sink_tokens, values.later_tokens) or not keys.tokens:
        raise KernelError(
            f"keys hold {keys.sink_tokens} sinks and {keys.later_tokens} more tokens, values {values.sink_tokens} and "
            f"{values.later_tokens}; both need the same sinks and at least one token."
        )
    if dim != keys.sink.shape[-1]:
        raise KernelError(f"q has head_dim {dim}, the cache {keys.sink.shape[-1]}.")
