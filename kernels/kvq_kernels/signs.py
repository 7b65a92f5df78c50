"""Codes of symmetric groups as blocks hold them: negative ones in two's complement, so that a code and the bit that
says it is negative add up to it, code - 2^bits * bit.

Codes (..., elements) uint8, the grouped dimension last, with scales and words of signs as PackedGroups has them.
"""

import torch
from kvq_kernels.grouped import Grid
from torch import Tensor

Parts = tuple[Tensor, Tensor, Tensor]


def complemented(codes: Tensor, scales: Tensor, words: Tensor, grid: Grid) -> Parts:
    """From magnitudes. Bits lie in words where ``sign_places`` says."""
    if grid.mode == "asymmetric":
        return codes, scales, words
    minus = _bits(words, codes, scales, grid) & (codes > 0)
    found = torch.where(minus, -codes & ((1 << grid.bits) - 1), codes)
    return found, scales, _worded(unshuffled(whole_words(minus, grid.group_size)), scales, words, grid)


def signed(codes: Tensor, scales: Tensor, words: Tensor, grid: Grid) -> Parts:
    """The inverse, but that zeros have no sign."""
    if grid.mode == "asymmetric":
        return codes, scales, words
    natural = shuffled(words)
    minus = _bits(natural, codes, scales, grid)
    found = torch.where(minus, -codes & ((1 << grid.bits) - 1), codes)
    return found, scales, _worded(natural, scales, words, grid)


def _bits(words: Tensor, codes: Tensor, scales: Tensor, grid: Grid) -> Tensor:
    """Which elements of symmetric groups have their bit set: bool like the codes."""
    count = codes.shape[-1]
    places = torch.arange(32, dtype=torch.int32, device=words.device)
    bits = ((words[..., None] >> places) & 1).bool().flatten(-2)[..., :count]
    if grid.mode == "symmetric":
        return bits
    return bits & torch.signbit(scales).repeat_interleave(grid.group_size, -1)[..., :count]


def _worded(words: Tensor, scales: Tensor, otherwise: Tensor, grid: Grid) -> Tensor:
    """``words`` where groups are symmetric, and else what is there, which are zero-points."""
    if grid.mode == "symmetric":
        return words
    return torch.where(torch.signbit(scales).repeat_interleave(grid.words, -1), words, otherwise)


def whole_words(bits: Tensor, group_size: int) -> Tensor:
    """bool (..., elements) as int32 (..., words), whole groups of them, the first element in the lowest bit."""
    short = -bits.shape[-1] % group_size
    lines = torch.nn.functional.pad(bits, (0, short)).unflatten(-1, (-1, 32)).to(torch.int64)
    sums = (lines << torch.arange(32, device=bits.device)).sum(-1)
    return torch.where(sums < 1 << 31, sums, sums - (1 << 32)).to(torch.int32)


def sign_places() -> Tensor:
    """Which bit of its word each of 32 elements has: int32 (32,). The bits of even elements are in the low half, those
    of odd ones in the high half: a pair of elements that tensor cores take together has them 16 bits apart. Elements i
    and i + 16 have them 2 bits apart, as the 2-bit codes of neighbouring cells lie in their words."""
    return unshuffled((1 << torch.arange(32)).to(torch.int32)).to(torch.int64).bitwise_and(0xFFFFFFFF).log2().int()


def unshuffled(words: Tensor) -> Tensor:
    """int32 words, the first element in the lowest bit, with their bits where ``sign_places`` says."""
    for step, mask in ((15, 0x0000AAAA), (1, 0x22222222)):
        swap = (words ^ (words >> step)) & mask
        words = words ^ swap ^ (swap << step)
    return words


def shuffled(words: Tensor) -> Tensor:
    """Inverse of :func:`unshuffled`."""
    for step, mask in ((1, 0x22222222), (15, 0x0000AAAA)):
        swap = (words ^ (words >> step)) & mask
        words = words ^ swap ^ (swap << step)
    return words
