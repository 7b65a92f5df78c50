"""Ranges and levels from texts, for KVQuant: where keys lie before RoPE, and which levels serve a model's own loss."""

import torch
from torch import Tensor

from kvq_core.methods.baselines.level_codecs import ChannelLevels, LevelCodec, TokenLevels
from kvq_core.methods.baselines.level_tables import key_tables, levels_name, value_tables
from kvq_core.training.collect import Samples, WeighedSamples

WIDTHS = (1, 2, 3, 4, 8)
TOLD = 2  # bits of the codes whose errors are told


def fit_ranges(train: WeighedSamples, held_out: Samples, fraction: float) -> dict[str, Tensor]:
    """``key_middles``, ``key_halves`` (layers, kv_heads, head_dim), and ``key_levels_B``, ``value_levels_B`` (layers,
    2^B) of every width B, in fp16, ``fraction`` of a channel's keys and of a token's values left out; errors of both
    tensors' texts by layer, (layers, 2) float64: ||x - x'||^2 / ||x||^2 of keys and of values."""
    half = torch.float16
    of_keys, _ = key_tables(train.keys, fraction, WIDTHS, half, train.key_weights)
    of_values = value_tables(train.values, fraction, WIDTHS, half, train.value_weights)
    size = TOLD, train.keys.shape[1], train.keys.shape[-1]
    key = ChannelLevels(*size, {}, {**of_keys, "levels": of_keys[levels_name(TOLD)]}, sparse=fraction > 0)
    value = TokenLevels(*size, {}, {"levels": of_values[levels_name(TOLD)]}, fraction, half)
    errors = {
        name: torch.stack([_errors(key, texts.keys), _errors(value, texts.values)], -1)
        for name, texts in (("train_error", train), ("held_out_error", held_out))
    }
    named = {f"key_{name}": t for name, t in of_keys.items()} | {f"value_{name}": t for name, t in of_values.items()}
    return named | errors


def _errors(codec: LevelCodec, x: Tensor) -> Tensor:
    """Of x (layers, kv_heads, tokens, head_dim): (layers,) float64."""
    x = x.float()
    read = codec.decode(codec.encode(x, 0))
    return (read - x).double().square().sum((1, 2, 3)) / x.double().square().sum((1, 2, 3))
