"""SQuat's block-wise rounding of keys (Algorithm 1), packed as KIVI packs them."""

from collections.abc import Sequence

import torch
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.grouped import Grid, PackedGroups, row_strides
from kvq_kernels.launch import SQUAT, power_of_two, run
from kvq_kernels.packing import pack, packed_bytes
from kvq_kernels.quantize import GroupCodes, dequantize_groups, quantize_groups
from torch import Tensor


def squat_quantize(x: Tensor, updates: tuple[Tensor, ...], block: int, grid: Grid, path: Path = "auto") -> PackedGroups:
    """Round keys x (..., kv_heads, tokens, head_dim) block of channels by block of channels and pack them per channel.

    updates[t] (..., kv_heads, block, channels after block t) float32 carries the rounding error of block t into those
    channels; there is none for the last block. All groups of tokens are rounded side by side.
    """
    dim = x.shape[-1]
    if dim % block or len(updates) < dim // block - 1:
        raise KernelError(
            f"block = {block} with {len(updates)} updates does not cover head_dim = {dim}: block must divide it, and "
            "every block but the last needs an update."
        )
    if grid.mode != "asymmetric":
        raise KernelError(f"SQuat rounds on asymmetric grids, not on {grid.mode} ones.")
    small = f"group_size = {grid.group_size} is smaller than 16" if grid.group_size < 16 else grid.obstacle
    if use_triton("squat_quantize", path, x, small):
        return _triton(x, updates, block, grid)
    codes, scales, zeros = squat_codes(x, updates, block, grid)
    return PackedGroups(pack(codes, grid.bits), scales, zeros)


def squat_codes(x: Tensor, updates: Sequence[Tensor], block: int, grid: Grid) -> GroupCodes:
    """The rounding itself in plain torch, codes (..., kv_heads, head_dim, tokens) not packed yet."""
    dim = x.shape[-1]
    current = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)  # shifted as blocks are rounded
    parts = []
    for index, end in enumerate(range(block, dim + 1, block)):
        rows = current[..., end - block : end].transpose(-1, -2)
        coded = quantize_groups(rows, grid.bits, grid.group_size, grid.scale, grid.zero_point)
        parts.append(coded)
        if index < dim // block - 1:
            error = (dequantize_groups(coded, grid.group_size) - rows).transpose(-1, -2)
            current[..., end:] += error @ updates[index]
    return GroupCodes(*(torch.cat(tensors, -2) for tensors in zip(*parts, strict=True)))


def _triton(x: Tensor, updates: tuple[Tensor, ...], block: int, grid: Grid) -> PackedGroups:
    import triton.language as tl
    from kvq_kernels.triton_ops.squat import squat_block_kernel

    current = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    *lead, tokens, dim = current.shape
    groups, size = -(-tokens // grid.group_size), packed_bytes(tokens, grid.bits)
    device = current.device
    packed = PackedGroups(
        torch.empty(*lead, dim, size, dtype=torch.uint8, device=device),
        torch.empty(*lead, dim, groups, dtype=grid.scale, device=device),
        torch.empty(*lead, dim, groups, dtype=grid.zero_point, device=device),
    )
    halves = {torch.float16: tl.float16, torch.float32: tl.float32}
    for index, begin in enumerate(range(0, dim, block)):
        rest = dim - begin - block
        update = (
            updates[index].flatten(0, -3).contiguous() if rest else current
        )  # nothing is read where nothing is left
        run(
            squat_block_kernel,
            (current.shape[:-2].numel() * groups,),
            SQUAT,
            {
                "current": current, "update": update, "codes": packed.codes, "scales": packed.scales,
                "zeros": packed.words, "tokens": tokens, "dim": dim, "begin": begin, "block": block, "rest": rest,
                "matrices_in_update": update.shape[0] if rest else 1, **row_strides(packed), "size": size,
            },
            {
                "R": max(16, power_of_two(block)), "GROUP": grid.group_size, "BITS": grid.bits,
                "META": halves[grid.scale], "ZERO": halves[grid.zero_point], "TILE": 32,
            },
        )  # fmt: skip
    return packed
