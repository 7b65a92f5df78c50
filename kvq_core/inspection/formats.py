"""Stored bytes of a model's cache in every format, by length: what real packed tensors of its shape take."""

import itertools
from dataclasses import replace

import torch

from kvq_core.analysis.context_growth import Growth
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup
from kvq_core.errors import KvqError
from kvq_core.inspection.report import FormatBytes
from kvq_core.methods import methods
from kvq_core.metrics.stored_bytes import measure
from kvq_core.models import LoadedModel
from kvq_core.spec import Lane

LENGTHS = (2_048, 8_192, 32_768, 131_072)  # tokens of a context


def formats_of(model: LoadedModel) -> tuple[FormatBytes, ...]:
    """Every method at its defaults, on a layer of the model's shape filled with random numbers, or on the fewest of
    which it stores one.

    Widths that a method reads from the data (QAQ's) are those of random numbers; a run measures them on a prompt's.
    """
    return tuple(_format(model, Lane(method=name)) for name in methods())


def _format(model: LoadedModel, lane: Lane) -> FormatBytes:
    method = lane.build()
    named = {"method": lane.method, "title": method.title, "settings": method.summary()}
    try:
        if reason := lane.why_not(model.shape):
            return FormatBytes(**named, nbytes={}, why_not=reason)
        growth = _growth(model, lane)
    except KvqError as error:
        return FormatBytes(**named, nbytes={}, why_not=str(error))
    sizes = {tokens: growth.nbytes(model.shape, tokens, 1) for tokens in LENGTHS}
    return FormatBytes(**named, nbytes={tokens: round(size) for tokens, size in sizes.items() if size is not None})


def _growth(model: LoadedModel, lane: Lane) -> Growth:
    """Raises MethodError where the method lacks what it needs of the model, such as codebooks."""
    held = [window.sink + window.recent + (window.step or 0) for window in lane.windows()]
    tokens = max(256, 2 * max(held))  # enough that some leave every window
    method = lane.build()
    count = next(layers for layers in itertools.count(1) if len(method.kept_layers(layers)) < layers)
    shape = replace(model.shape, layers=count, scaling=model.shape.scaling[:count], kinds=())
    random = torch.Generator().manual_seed(0)
    kv, q = (count, shape.kv_heads, tokens, shape.head_dim), (count, shape.query_heads, tokens, shape.head_dim)
    keys, values, queries = (torch.randn(size, generator=random) for size in (kv, kv, q))
    group = LayerGroup([*range(count)], torch.device("cpu"), keys, values, queries, shape.scaling)
    rope = model.rope(tokens).on(model.shape.full[:1] * count)
    return Growth.of(lane, measure(LaneCache.of_prompt(lane, [group], rope, model.ref), shape), shape)
