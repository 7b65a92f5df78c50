"""How the prompt's keys lie in the pairs of channels that RoPE turns together: a bias, a mean, and what differs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvq_core.capture.spectra import before_rope
from kvq_core.engine.prefill import LayerGroup
from kvq_core.models.pairs import Pairs, pairs_of
from kvq_core.models.rope import Rope


def key_pairs(groups: Sequence[LayerGroup], rope: Rope, layers: int) -> dict[str, Tensor]:
    """The arrays ``pairs/...`` of record.ARRAYS. ``rope`` of all the model's ``layers``, for two positions or more."""
    heads, dim = groups[0].keys.shape[1], groups[0].keys.shape[-1]
    of, theta = torch.full((layers, dim), -1, dtype=torch.int16), torch.zeros(layers, dim)
    biased = any(group.key_bias is not None for group in groups)
    names = ("key_mean", "key_spread", *(["key_bias"] if biased else []))
    sizes = {name: torch.zeros(layers, heads, dim) for name in names}
    for group in groups:
        for at, (layer, pairs) in enumerate(zip(group.layers, pairs_of(rope, group.layers), strict=True)):
            if (own := rope.on([layer])).known:
                count, bias = len(pairs.theta), None if group.key_bias is None else group.key_bias[at]
                of[layer], theta[layer, :count] = pairs.of, pairs.theta
                for name, size in _sizes(before_rope(group.keys[at], own), bias, pairs).items():
                    sizes[name][layer, :, :count] = size
    most = max(1, int(of.max()) + 1)
    found = {"of": of, "theta": theta, **sizes}
    return {f"pairs/{name}": x if name == "of" else x[..., :most].contiguous() for name, x in found.items()}


def _sizes(keys: Tensor, bias: Tensor | None, pairs: Pairs) -> dict[str, Tensor]:
    """keys (kv_heads, tokens, head_dim) before RoPE and bias (kv_heads, head_dim) -> (kv_heads, pairs) each."""
    mean = keys.double().mean(-2)
    squares = {"key_mean": mean.square(), "key_spread": (keys.double() - mean[:, None]).square().mean(-2)}
    if bias is not None:
        squares["key_bias"] = bias.double().square()
    return {name: pairs.sums(square).sqrt().float().cpu() for name, square in squares.items()}
