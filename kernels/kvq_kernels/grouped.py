"""Packed groups: quantize and pack in one step, unpack and dequantize in one step.

The one storage form of the fused operations. A matrix (tokens, channels) is grouped along its channels ("channels":
per-token groups, KIVI's values and InnerQ's keys) or along its tokens ("tokens": per-channel groups, KIVI's keys and
InnerQ's values); the grouped dimension is stored last either way.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import torch
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.launch import DEQUANTIZE, MOST_QUANTIZED, QUANTIZE, power_of_two, run
from kvq_kernels.packing import pack, packed_bytes, unpack
from kvq_kernels.quantize import GroupCodes, dequantize_groups, quantize_groups
from kvq_kernels.signed import (
    HybridCodes,
    SignedCodes,
    dequantize_hybrid,
    dequantize_signed,
    quantize_hybrid,
    quantize_signed,
)
from torch import Tensor

Axis = Literal["channels", "tokens"]
Mode = Literal["asymmetric", "symmetric", "hybrid"]
AXES: tuple[Axis, ...] = ("channels", "tokens")
MODES: tuple[Mode, ...] = ("asymmetric", "symmetric", "hybrid")
BITS = (1, 2, 3, 4, 8)
WORD = 32  # elements whose signs share an int32
MOST_IN_THREAD = 64  # elements of a group that a thread holds without spilling


@dataclass(frozen=True)
class Grid:
    """How groups are quantized. ``zero_point``: dtype of an asymmetric group's minimum."""

    bits: int
    group_size: int = 32
    mode: Mode = "asymmetric"
    zero_point: torch.dtype = torch.float16
    scale: torch.dtype = torch.float16

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise KernelError(f"bits = {self.bits}: allowed are {', '.join(map(str, BITS))}.")
        if self.mode not in MODES:
            raise KernelError(f"mode = {self.mode!r}: allowed are {', '.join(MODES)}.")
        if self.group_size < 1 or (self.mode != "asymmetric" and self.group_size % WORD):
            allowed = "a positive size" if self.mode == "asymmetric" else f"multiples of {WORD}, the signs of one word"
            raise KernelError(f"group_size = {self.group_size} in mode {self.mode}: allowed is {allowed}.")

    @property
    def words(self) -> int:
        """int32 words a group whose signs are stored."""
        return self.group_size // WORD

    @property
    def obstacle(self) -> str | None:
        """Why the kernels cannot read this grid."""
        if self.group_size != power_of_two(self.group_size) or not 8 <= self.group_size <= 256:
            return f"group_size = {self.group_size} is not a power of two from 8 to 256"
        return None


class PackedGroups(NamedTuple):
    """Quantized matrices, grouped dimension last.

    codes (..., rows, bytes) uint8, one bit stream a row · scales (..., rows, groups); the sign bit of a hybrid
    tensor's scale says that the group is symmetric · words: zero-points (..., rows, groups) of an asymmetric tensor,
    else int32 (..., rows, groups * group_size / 32): the signs of a symmetric group, an element a bit, or in the first
    word the minimum of an asymmetric one.
    """

    codes: Tensor
    scales: Tensor
    words: Tensor

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self)


def check_axis(axis: Axis) -> None:
    """Raises KernelError for what is none."""
    if axis not in AXES:
        raise KernelError(f"axis = {axis!r}: allowed are {', '.join(AXES)}.")


def quantize_pack(x: Tensor, grid: Grid, axis: Axis, path: Path = "auto") -> PackedGroups:
    """Quantize x (..., tokens, channels) in groups along ``axis`` and pack the codes.

    A last incomplete group is quantized by itself. Rounding is half to even; scales and zero-points are rounded before
    coding. Raises KernelError where Triton is asked for and cannot run.
    """
    check_axis(axis)
    if use_triton("quantize_pack", path, x, grid.obstacle):
        return _quantize_triton(x, grid, axis)
    rows = (x.transpose(-1, -2) if axis == "tokens" else x).contiguous()
    if grid.mode == "asymmetric":
        low = quantize_groups(rows, grid.bits, grid.group_size, grid.scale, grid.zero_point)
        return PackedGroups(pack(low.codes, grid.bits), low.scales, low.zeros)
    if grid.mode == "symmetric":
        signed = quantize_signed(rows, grid.bits, grid.group_size, grid.scale)
        return PackedGroups(pack(signed.codes, grid.bits), signed.scales, _as_words(signed.signs))
    both = quantize_hybrid(rows.float(), grid.bits, grid.group_size, grid.scale, grid.zero_point)
    scales = torch.where(both.symmetric, -both.scales, both.scales)
    return PackedGroups(pack(both.codes, grid.bits), scales, _as_words(both.words))


def unpack_dequantize(
    packed: PackedGroups, grid: Grid, axis: Axis, count: int, path: Path = "auto", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Inverse of :func:`quantize_pack`: (..., tokens, channels); ``count`` is the length of the grouped dimension."""
    check_axis(axis)
    if use_triton("unpack_dequantize", path, packed.codes, grid.obstacle):
        return _dequantize_triton(packed, grid, axis, count, dtype)
    codes = unpack(packed.codes, grid.bits, count)
    rows = dequantize_codes(codes, packed.scales, packed.words, grid)
    return (rows.transpose(-1, -2) if axis == "tokens" else rows).to(dtype)


def dequantize_codes(codes: Tensor, scales: Tensor, words: Tensor, grid: Grid) -> Tensor:
    """Codes (..., count) uint8 of groups along the last dimension, with scales and words of at least as many groups as
    PackedGroups has them: float32."""
    groups = -(-codes.shape[-1] // grid.group_size)
    scales = scales[..., :groups]
    if grid.mode == "asymmetric":
        return dequantize_groups(GroupCodes(codes, scales, words[..., :groups]), grid.group_size)
    octets = words[..., : groups * grid.words].contiguous().view(torch.uint8).unflatten(-1, (groups, grid.words * 4))
    if grid.mode == "symmetric":
        return dequantize_signed(SignedCodes(codes, octets, scales), grid.group_size)
    hybrid = HybridCodes(codes, octets, scales.abs(), torch.signbit(scales))
    return dequantize_hybrid(hybrid, grid.group_size, grid.zero_point)


def _as_words(octets: Tensor) -> Tensor:
    """(..., groups, bytes) uint8 -> (..., groups * bytes / 4) int32."""
    return octets.contiguous().view(torch.int32).flatten(-2)


def grid_constants(grid: Grid) -> dict[str, object]:
    """What every kernel that reads packed groups is compiled for."""
    return {
        "GROUP": grid.group_size, "BITS": grid.bits, "MODE": MODES.index(grid.mode),
        "HALF_ZERO": grid.zero_point == torch.float16,
    }  # fmt: skip


def row_strides(packed: PackedGroups) -> dict[str, int]:
    """Distances between rows of the three tensors, and the rows a matrix has room for, the same in all three."""
    names = ("code_stride", "scale_stride", "word_stride")
    strides = {name: tensor.stride(-2) for name, tensor in zip(names, packed, strict=True)}
    capacity = {t.stride(-3) // t.stride(-2) if t.dim() > 2 else t.shape[-2] for t in packed}
    if len(capacity) > 1 or any(t.stride(-1) != 1 for t in packed):
        raise KernelError(f"codes, scales and words are laid out differently: {[tuple(t.stride()) for t in packed]}.")
    return {**strides, "capacity": capacity.pop()}


def _by_rows(x: Tensor, axis: Axis) -> Tensor:
    """(..., tokens, channels) -> (matrices, rows, count), grouped dimension last, by strides alone where possible."""
    flat = x.reshape(-1, *x.shape[-2:])
    return flat.transpose(-1, -2) if axis == "tokens" else flat


def _quantize_triton(x: Tensor, grid: Grid, axis: Axis) -> PackedGroups:
    import triton.language as tl
    from kvq_kernels.triton_ops.pack import quantize_pack_kernel
    from kvq_kernels.triton_ops.pack_columns import quantize_columns_kernel

    flat = _by_rows(x, axis)
    matrices, rows, count = flat.shape
    groups, size = -(-count // grid.group_size), packed_bytes(count, grid.bits)
    lead = (*x.shape[:-2], rows)
    plain = grid.mode == "asymmetric"
    packed = PackedGroups(
        torch.empty(*lead, size, dtype=torch.uint8, device=x.device),
        torch.empty(*lead, groups, dtype=grid.scale, device=x.device),
        torch.empty(*lead, groups if plain else groups * grid.words, dtype=grid.zero_point if plain else torch.int32,
                    device=x.device),
    )  # fmt: skip
    wide = max(grid.group_size, min(QUANTIZE.tokens, power_of_two(count)))
    tile = min(max(1, MOST_QUANTIZED // wide), power_of_two(rows))
    columns = flat.stride(2) != 1 and grid.group_size <= MOST_IN_THREAD
    constants = {
        "R": tile, "N": wide, "PART": grid.group_size if columns else min(grid.group_size, WORD),
        "STRIDE": flat.stride(2), "WHOLE": count % wide == 0, **grid_constants(grid),
        "META": tl.float16 if grid.scale == torch.float16 else tl.float32,
    }  # fmt: skip
    run(
        quantize_columns_kernel if columns else quantize_pack_kernel,
        (matrices * -(-rows // tile) * -(-count // wide),),
        QUANTIZE,
        {
            "x": flat, "codes": packed.codes, "scales": packed.scales, "words": packed.words, "count": count,
            "rows": rows, "matrix_stride": flat.stride(0), "row_stride": flat.stride(1), **row_strides(packed),
            "size": size,
        },
        constants,
    )  # fmt: skip
    return packed


def _dequantize_triton(packed: PackedGroups, grid: Grid, axis: Axis, count: int, dtype: torch.dtype) -> Tensor:
    from kvq_kernels.triton_ops.pack import unpack_dequantize_kernel

    *lead, rows, _ = packed.codes.shape
    shape = (count, rows) if axis == "tokens" else (rows, count)
    out = torch.empty(*lead, *shape, dtype=dtype, device=packed.codes.device)
    flat = _by_rows(out, axis)
    tile, wide = min(DEQUANTIZE.tokens, power_of_two(rows)), DEQUANTIZE.tokens
    run(
        unpack_dequantize_kernel,
        (prod(lead) * -(-rows // tile) * -(-count // wide),),
        DEQUANTIZE,
        {
            **packed._asdict(), "out": flat, "count": count, "rows": rows, **row_strides(packed),
            "matrix_stride": flat.stride(0), "row_stride": flat.stride(1), "element_stride": flat.stride(2),
        },
        {"R": tile, "N": wide, **grid_constants(grid)},
    )  # fmt: skip
    return out
