"""What a short prefill shows of each layer's keys, values and attention."""

import torch
from torch import Tensor

from kvq_core.analysis.key_constants import constant_sizes
from kvq_core.capture.attention import SINKS, last_attention
from kvq_core.capture.cache_errors import score_error
from kvq_core.capture.spectra import spectra
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.rows import Rows
from kvq_core.inspection.report import LayerFigures
from kvq_core.models.rope import Rope

QUERIES = 64  # the prompt's last ones, whose scores and attention are looked at


def figures_of(groups: list[LayerGroup], rows: Rows, rope: Rope, plain: int, centred: int | None) -> list[LayerFigures]:
    """Figures of every layer, in the model's order.

    ``rows`` as they stand before the first step; ``plain`` and ``centred``: the rows of the lanes whose keys are stored
    per token at 4 bits, as they are and centred (None: that cannot be had).
    """
    found = []
    for g, group in enumerate(groups):
        of_group = spectra(group, rope)
        constants = constant_sizes(of_group["mean/key_pre"].numpy(), of_group["centred/key_pre"].numpy())
        for i, layer in enumerate(group.layers):
            errors = [None if row is None else _score_error(group, rows, g, i, row) for row in (plain, centred)]
            assert errors[0] is not None
            found.append(
                LayerFigures(
                    layer=layer,
                    constant=float(constants[i]) if rope.on([layer]).known else None,
                    key_outliers=_outliers(group.keys[i]),
                    key_rank=effective_rank(of_group["centred/key_pre_concat"][i]),
                    value_rank=effective_rank(of_group["centred/value_concat"][i]),
                    first_tokens=_first_tokens(group, i),
                    score_error=errors[0],
                    centred_score_error=errors[1],
                )
            )
    return sorted(found, key=lambda each: each.layer)


def effective_rank(singular_values: Tensor) -> float:
    """exp of the entropy of the spectrum (n,) as shares of its sum (Roy and Vetterli, 2007)."""
    shares = singular_values.double() / singular_values.double().sum().clamp_min(1e-30)
    return torch.special.entr(shares).sum().exp().item()


def _outliers(keys: Tensor) -> float:
    """Largest over median rms of the channels of keys (kv_heads, tokens, head_dim), in the worst head."""
    size = keys.square().mean(-2).sqrt()
    return (size.amax(-1) / size.median(-1).values.clamp_min(1e-30)).max().item()


def _first_tokens(group: LayerGroup, i: int) -> float:
    return (
        last_attention(group.queries[i, :, -QUERIES:], group.keys[i], group.scaling[i])[..., :SINKS]
        .sum(-1)
        .mean()
        .item()
    )


def _score_error(group: LayerGroup, rows: Rows, g: int, i: int, row: int) -> float:
    tokens = group.keys.shape[-2]
    delta = rows.working(row, g, "key", i) - rows.working(0, g, "key", i)
    queries = group.queries[i, :, -QUERIES:]
    return score_error(queries, delta, group.scaling[i], tokens - queries.shape[1]).item()
