"""Whether a product can leave codes in their words (triton_ops/places.py), and the shape of its tiles then."""

from typing import NamedTuple

import torch
from kvq_kernels.grouped import Axis, Grid, PackedGroups
from kvq_kernels.launch import MOST_ROWS, SHORTEST, Launch, power_of_two
from torch import Tensor


class PlacedTile(NamedTuple):
    """Query heads and channels of a tile, both padded."""

    rows: int
    channels: int


class Operand(NamedTuple):
    """Packed keys or values. ``inner``: the axis that a product with them sums over."""

    packed: PackedGroups
    grid: Grid
    axis: Axis
    inner: Axis


def place_tiles(q: Tensor, heads: int, dim: int, how: Launch, *operands: Operand) -> PlacedTile | None:
    """The tiles of a product of ``heads`` vectors in the dtype of q with each of the operands, or None."""
    if q.dtype == torch.float32 or any(not _in_words(operand) for operand in operands):
        return None
    narrow = (SHORTEST * each.grid.places for each in operands if each.axis == "channels")
    channels = max(power_of_two(dim), 32, *narrow)
    spans = (channels if each.axis == "channels" else how.tokens for each in operands)
    groups = [max(1, span // each.grid.group_size) for span, each in zip(spans, operands, strict=True)]
    rows = max(power_of_two(heads), SHORTEST // min(groups))
    if rows * max(groups) > MOST_ROWS or channels > 256:
        return None
    if how.tokens < SHORTEST * max(each.grid.places for each in operands):
        return None
    return PlacedTile(rows, channels)


def _in_words(operand: Operand) -> bool:
    """A row of codes begins with a word; and groups with signs lie along the sum, where they cost what others do."""
    size = operand.grid.places * operand.grid.bits // 8
    codes = operand.packed.codes
    whole = size > 0 and codes.stride(-2) % size == 0 and codes.storage_offset() % size == 0
    return whole and (operand.grid.mode == "asymmetric" or operand.axis == operand.inner)
