"""Fused dequantize-and-multiply: q.Kᵀ and p.V over packed groups, without writing the dequantized cache anywhere."""

from typing import Any

import torch
from kvq_kernels.dispatch import Path, use_triton
from kvq_kernels.grouped import Axis, Grid, PackedGroups, grid_constants, row_strides, unpack_dequantize
from kvq_kernels.launch import SCORES, VALUES, power_of_two, run, split_tokens, tile_of
from kvq_kernels.rotation import Turn, rotate
from torch import Tensor


def packed_scores(
    q: Tensor, keys: PackedGroups, grid: Grid, axis: Axis, tokens: int, path: Path = "auto",
    turn: Turn | None = None,
) -> Tensor:  # fmt: skip
    """q (..., n, head_dim) . keysᵀ: float32 (..., n, tokens), n queries sharing a matrix of packed keys.

    ``axis`` "channels" is the inner grouping of this product (InnerQ's keys), "tokens" the outer one (KIVI's keys).
    ``turn``: the keys are stored before RoPE, and turned on the way.
    """
    obstacle = _obstacle(grid, q.shape[-1])
    if turn is not None and (axis == "channels" or q.shape[-1] < 32):
        obstacle = obstacle or "keys before RoPE are read in groups of tokens, with a head_dim of 32 or more"
    if not use_triton("packed_scores", path, q, obstacle):
        count = tokens if axis == "tokens" else q.shape[-1]
        dense = unpack_dequantize(keys, grid, axis, count, "torch")[..., :tokens, :]
        return q.float() @ (dense if turn is None else rotate(dense, turn)).transpose(-1, -2)
    from kvq_kernels.triton_ops.gemv import packed_scores_kernel

    q = q.contiguous()
    *lead, queries, dim = q.shape
    out = torch.empty(*lead, queries, tokens, dtype=torch.float32, device=q.device)
    inner, matrices = axis == "channels", q.shape[:-2].numel()
    sizes = {"queries": queries, "tokens": tokens, "dim": dim}
    tile, wide = tile_of(SCORES, dim)
    run(
        packed_scores_kernel,
        (matrices * -(-tokens // tile),),
        SCORES,
        {
            "q": q, **(turn.contiguous()._asdict() if turn else {"cos": None, "sin": None}), **keys._asdict(),
            "out": out, **sizes, **row_strides(keys),
        },
        {
            **_constants(q, grid, inner), "BT": tile, "DP": wide, "M": max(16, power_of_two(queries)),
            "TURN": turn is not None,
        },
    )  # fmt: skip
    return out


def packed_values(
    p: Tensor, values: PackedGroups, grid: Grid, axis: Axis, head_dim: int, path: Path = "auto"
) -> Tensor:
    """p (..., n, tokens) . values: float32 (..., n, head_dim), n rows of weights sharing a matrix of packed values.

    Weights are at most 1. ``axis`` "tokens" is the inner grouping of this product (InnerQ's values), "channels" the
    outer one (KIVI's).
    """
    tokens = p.shape[-1]
    if not use_triton("packed_values", path, p, _obstacle(grid, head_dim)):
        count = tokens if axis == "tokens" else head_dim
        return p.float() @ unpack_dequantize(values, grid, axis, count, "torch")[..., :tokens, :]
    from kvq_kernels.triton_ops.gemv import packed_values_kernel

    p = p.contiguous()
    *lead, queries, _ = p.shape
    matrices = p.shape[:-2].numel()
    inner = axis == "tokens"
    tile, wide = tile_of(VALUES, head_dim)
    tile = min(grid.group_size, 32) if inner else tile  # pieces of 64 spill at 3 bits
    chunk, splits = split_tokens(tokens, tile, matrices, p)
    out = torch.empty(splits, *lead, queries, head_dim, dtype=torch.float32, device=p.device)
    sizes = {"queries": queries, "tokens": tokens, "dim": head_dim, "chunk": chunk, "matrices": matrices}
    run(
        packed_values_kernel,
        (matrices, splits),
        VALUES,
        {"p": p, **values._asdict(), "out": out, **sizes, **row_strides(values)},
        {**_constants(p, grid, inner), "BT": tile, "DP": wide, "M": max(16, power_of_two(queries))},
    )
    return out.sum(0)


def compute_type(like: Tensor) -> Any:
    """What products are computed in: float16 for tensor cores, float32 where the vectors are float32."""
    import triton.language as tl

    return tl.float32 if like.dtype == torch.float32 else tl.float16


def _constants(like: Tensor, grid: Grid, inner: bool) -> dict[str, Any]:
    return {**grid_constants(grid), "INNER": inner, "DTYPE": compute_type(like)}


def _obstacle(grid: Grid, head_dim: int) -> str | None:
    if grid.group_size < 16:
        return f"group_size = {grid.group_size} is smaller than the 16 elements a matrix product needs"
    return f"head_dim = {head_dim} is larger than 256" if head_dim > 256 else grid.obstacle
