"""Bit packing along the last dimension: b-bit codes in a little-endian bit stream held in uint8."""

from functools import cache
from math import gcd

import torch
from torch import Tensor

_SPREAD = {1: torch.int64, 2: torch.int32, 4: torch.int16}  # with a byte for each code that a byte holds


def _word(bits: int) -> tuple[int, int]:
    """The smallest run of codes that fills whole bytes: (codes a word, bytes a word)."""
    if not 1 <= bits <= 8:
        raise ValueError(f"bits = {bits}: codes of 1 to 8 bits can be packed")
    common = gcd(8, bits)
    return 8 // common, bits // common


@cache
def _shifts(bits: int, device: torch.device) -> Tensor:
    """Of the codes of a byte."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that ``count`` codes of ``bits`` bits take in one packed row."""
    codes, size = _word(bits)
    return -(-count // codes) * size


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes (..., n), uint8 with values below 2**bits, into (..., packed_bytes(n, bits)) uint8.

    The first code takes the lowest bits. A last incomplete word is filled with zeros, so a row holds at most seven
    bytes more than the bits need.
    """
    per_word, size = _word(bits)
    if per_word == 1:
        return codes.contiguous()
    short = -codes.shape[-1] % per_word
    if short:
        codes = torch.nn.functional.pad(codes, (0, short))
    groups = codes.unflatten(-1, (-1, per_word))
    if size == 1 and not codes.is_cpu:  # which pays for launches
        return (groups << _shifts(bits, codes.device)).sum(-1, dtype=torch.uint8)
    if size == 1:  # 1, 2 and 4 bits: a word is one byte, and uint8 arithmetic suffices
        word = groups[..., 0].clone()
        for i in range(1, per_word):
            word |= groups[..., i] << (bits * i)
        return word
    packed = torch.zeros(*groups.shape[:-1], size, dtype=torch.uint8, device=codes.device)
    for i in range(per_word):  # uint8 arithmetic drops what passes the top of a byte; the rest goes into the next one
        at, shift = divmod(bits * i, 8)
        packed[..., at] |= groups[..., i] << shift
        if shift + bits > 8:
            packed[..., at + 1] |= groups[..., i] >> (8 - shift)
    return packed.flatten(-2)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Inverse of :func:`pack`: (..., packed_bytes(count, bits)) uint8 -> codes (..., count) uint8."""
    per_word, size = _word(bits)
    if per_word == 1:
        return packed[..., :count]
    mask = (1 << bits) - 1
    if size == 1 and not packed.is_cpu:
        return ((packed[..., None] >> _shifts(bits, packed.device)) & mask).flatten(-2)[..., :count]
    if size == 1:  # spread a byte's codes over the bytes of a wider integer: whole-word arithmetic is vectorized
        word = packed.to(_SPREAD[bits], memory_format=torch.contiguous_format)
        spread = word.clone()
        for i in range(1, per_word):
            spread |= word << ((8 - bits) * i)
        return (spread & sum(mask << (8 * i) for i in range(per_word))).view(torch.uint8)[..., :count]
    octets = packed.unflatten(-1, (-1, size))
    codes = torch.empty(*octets.shape[:-1], per_word, dtype=torch.uint8, device=packed.device)
    for i in range(per_word):
        at, shift = divmod(bits * i, 8)
        code = octets[..., at] >> shift
        if shift + bits > 8:
            code |= octets[..., at + 1] << (8 - shift)
        codes[..., i] = code & mask
    return codes.flatten(-2)[..., :count]
