"""Fused dequantize-and-multiply: q.Kᵀ and p.V over packed groups, without writing the dequantized cache anywhere."""

from typing import Any

import torch
from kvq_kernels.dispatch import Path, use_triton
from kvq_kernels.grouped import Axis, Grid, PackedGroups, grid_constants, row_strides, unpack_dequantize
from kvq_kernels.launch import (
    PLACES,
    PLACES_HYBRID,
    PLACES_WIDE,
    SCORES,
    VALUES,
    Launch,
    power_of_two,
    run,
    split_tokens,
    tile_of,
)
from kvq_kernels.placing import Operand, PlacedTile, place_tiles
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
    from kvq_kernels.triton_ops.gemv import packed_scores_kernel, placed_scores_kernel

    q = q.contiguous()
    *lead, queries, dim = q.shape
    out = torch.empty(*lead, queries, tokens, dtype=torch.float32, device=q.device)
    inner, matrices = axis == "channels", q.shape[:-2].numel()
    sizes = {"queries": queries, "tokens": tokens, "dim": dim}
    fits = None if turn else place_tiles(q, queries, dim, PLACES, Operand(keys, grid, axis, "channels"))
    if fits:
        chunk, splits = split_tokens(tokens, PLACES.tokens, matrices, q)
        run(
            placed_scores_kernel,
            (matrices * splits,),
            PLACES,
            {"q": q, **keys._asdict(), "out": out, **sizes, "chunk": chunk, "splits": splits, **row_strides(keys)},
            _placed_constants(PLACES, grid, inner, fits, dim, tokens),
        )
        return out
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
    p: Tensor, values: PackedGroups, grid: Grid, axis: Axis, head_dim: int, path: Path = "auto",
    largest: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """p (..., n, tokens) . values: float32 (..., n, head_dim), n rows of weights sharing a matrix of packed values.

    Weights are at most 1. ``axis`` "tokens" is the inner grouping of this product (InnerQ's values), "channels" the
    outer one (KIVI's). ``largest``: one float32 that no value's size exceeds, found from the scales where it is not
    given.
    """
    tokens = p.shape[-1]
    if not use_triton("packed_values", path, p, _obstacle(grid, head_dim)):
        count = tokens if axis == "tokens" else head_dim
        return p.float() @ unpack_dequantize(values, grid, axis, count, "torch")[..., :tokens, :]
    from kvq_kernels.triton_ops.gemv import packed_values_kernel, placed_values_kernel

    p = p.contiguous()
    *lead, queries, _ = p.shape
    matrices = p.shape[:-2].numel()
    inner = axis == "tokens"
    how = _values_launch(grid)
    fits = place_tiles(p, queries, head_dim, how, Operand(values, grid, axis, "tokens"))
    tile, wide = tile_of(VALUES, head_dim)
    tile = how.tokens if fits else min(grid.group_size, 32) if inner else tile  # pieces of 64 spill at 3 bits
    chunk, splits = split_tokens(tokens, tile, matrices, p)
    out = torch.empty(splits, *lead, queries, head_dim, dtype=torch.float32, device=p.device)
    sizes = {"queries": queries, "tokens": tokens, "dim": head_dim, "chunk": chunk, "matrices": matrices}
    if fits:
        constants = _placed_constants(how, grid, inner, fits, head_dim, tokens)
        bound = {"largest": None if inner else _largest(values, grid) if largest is None else largest}
    else:
        bound = {}
        constants = {**_constants(p, grid, inner), "BT": tile, "DP": wide, "M": max(16, power_of_two(queries))}
    run(
        placed_values_kernel if fits else packed_values_kernel,
        (matrices, splits),
        how if fits else VALUES,
        {"p": p, **values._asdict(), **bound, "out": out, **sizes, **row_strides(values)},
        constants,
    )
    return out.sum(0)


def compute_type(like: Tensor) -> Any:
    """What products are computed in: float16 for tensor cores, float32 where the vectors are float32."""
    import triton.language as tl

    return tl.float32 if like.dtype == torch.float32 else tl.float16


def _constants(like: Tensor, grid: Grid, inner: bool) -> dict[str, Any]:
    return {**grid_constants(grid), "INNER": inner, "DTYPE": compute_type(like)}


def _placed_constants(how: Launch, grid: Grid, inner: bool, fits: PlacedTile, dim: int, tokens: int) -> dict[str, Any]:
    whole = dim == fits.channels and tokens % how.tokens == 0
    return {
        **grid_constants(grid), "INNER": inner, "H": fits.rows, "BT": how.tokens, "DP": fits.channels,
        "WIDTH": grid.places, "WHOLE": whole,
    }  # fmt: skip


def _largest(values: PackedGroups, grid: Grid) -> Tensor:
    """A bound of the sizes of asymmetric values, on their device: nothing waits for it."""
    return ((1 << grid.bits) - 1) * values.scales.float().abs().amax() + values.words.float().abs().amax()


def _values_launch(grid: Grid) -> Launch:
    if grid.group_size < PLACES.tokens:
        return PLACES
    return PLACES_HYBRID if grid.mode == "hybrid" else PLACES_WIDE if grid.bits == 4 else PLACES


def _obstacle(grid: Grid, head_dim: int) -> str | None:
    if grid.group_size < 16:
        return f"group_size = {grid.group_size} is smaller than the 16 elements a matrix product needs"
    return f"head_dim = {head_dim} is larger than 256" if head_dim > 256 else grid.obstacle
