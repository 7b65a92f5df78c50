"""What a short prefill shows of each layer's keys, values and attention."""

from collections.abc import Sequence

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
from kvq_core.models.scoring import Scoring

QUERIES = 64  # the prompt's last ones, whose scores and attention are looked at


def figures_of(
    groups: list[LayerGroup],
    rows: Rows,
    rope: Rope,
    scoring: Sequence[Scoring | None],
    plain: int,
    centred: int | None,
) -> list[LayerFigures]:
    """Figures of every layer that attends to all tokens, in the model's order; ``scoring`` of all layers.

    ``rows`` as they stand before the first step; ``plain`` and ``centred``: the rows of the lanes whose keys are stored
    per token at 4 bits, as they are and centred (None: that cannot be had).
    """
    found = []
    for g, whole in enumerate(groups):
        group = whole.of(whole.captured)
        if group is None:
            continue
        of_group = spectra(group, rope)
        constants = constant_sizes(of_group["mean/key_pre"].numpy(), of_group["centred/key_pre"].numpy())
        for i, layer in enumerate(group.layers):
            at, how = (g, whole.layers.index(layer)), scoring[layer]
            errors = [None if row is None else _score_error(group, i, rows, at, row) for row in (plain, centred)]
            assert errors[0] is not None and how is not None
            found.append(
                LayerFigures(
                    layer=layer,
                    constant=float(constants[i]) if rope.on([layer]).known else None,
                    key_outliers=_outliers(group.keys[i]),
                    key_rank=effective_rank(of_group["centred/key_pre_concat"][i]),
                    value_rank=effective_rank(of_group["centred/value_concat"][i]),
                    first_tokens=_first_tokens(group, i, how),
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


def _first_tokens(group: LayerGroup, i: int, how: Scoring) -> float:
    return last_attention(group.queries[i, :, -QUERIES:], group.keys[i], how)[..., :SINKS].sum(-1).mean().item()


def _score_error(group: LayerGroup, i: int, rows: Rows, at: tuple[int, int], row: int) -> float:
    """``at``: the group and the place in it where the rows hold the layer."""
    g, place = at
    tokens = group.keys.shape[-2]
    delta = rows.working(row, g, "key", place) - rows.working(0, g, "key", place)
    queries = group.queries[i, :, -QUERIES:]
    return score_error(queries, delta, group.scaling[i], tokens - queries.shape[1]).item()
