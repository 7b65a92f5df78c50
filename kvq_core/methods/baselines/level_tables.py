"""What KVQuant fits: ranges of key channels, and levels of keys and of values, on a prompt or on other texts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.codecs.codec import layer_slices
from kvq_core.methods.baselines.heads import join_heads
from kvq_core.methods.baselines.level_codecs import ranges
from kvq_core.methods.baselines.levels import fitted_levels

Tables = dict[str, Tensor]


def levels_name(bits: int) -> str:
    """Of the levels of codes of that width among the tables."""
    return f"levels_{bits}"


def key_tables(
    keys: Tensor, fraction: float, widths: Sequence[int], metadata: torch.dtype, weights: Tensor | None = None
) -> tuple[Tables, float]:
    """Of keys (layers, kv_heads, tokens, head_dim) before RoPE: ``middles`` and ``halves`` (layers, kv_heads, head_dim)
    of their channels without outliers, ``fraction`` / 2 at either end, in ``metadata``, and fp16 levels (layers,
    2^bits) of each width; and the share of elements beyond the ranges. ``weights``: of the elements, alike where there
    are none."""
    parts, beyond = [], 0.0
    for layers in layer_slices(keys):
        rows = keys[layers].float().mT
        middle, half, _ = ranges(rows, fraction, metadata)
        unit = ((rows - middle.float()) / half.float()).flatten(1)
        inside = unit.abs() <= 1
        beyond += (~inside).float().mean(1).sum().item() / len(keys)
        counted = inside if weights is None else inside * weights[layers].mT.flatten(1)
        found = {"middles": middle[..., 0], "halves": half[..., 0]}
        parts.append(found | _levels(unit, counted, widths))
    return _joined(parts), beyond


def value_tables(
    values: Tensor, fraction: float, widths: Sequence[int], metadata: torch.dtype, weights: Tensor | None = None
) -> Tables:
    """Levels of values, each token of which has a range and outliers of its own; see ``key_tables``."""
    parts = []
    for layers in layer_slices(values):
        rows = join_heads(values[layers].float())
        middle, half, at = ranges(rows, fraction, metadata)
        inside = torch.ones_like(rows, dtype=torch.bool).scatter_(-1, at, False).flatten(1)
        unit = ((rows - middle.float()) / half.float()).flatten(1)
        counted = inside if weights is None else inside * join_heads(weights[layers]).flatten(1)
        parts.append(_levels(unit, counted, widths))
    return _joined(parts)


def _levels(unit: Tensor, weights: Tensor, widths: Sequence[int]) -> Tables:
    return {levels_name(bits): fitted_levels(unit, weights, 1 << bits).half() for bits in widths}


def _joined(parts: list[Tables]) -> Tables:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
