"""Keys before RoPE and values of a model over real text, and what each of their elements matters to it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.machine.progress import Progress, Report
from kvq_core.methods.prompt import query_gram
from kvq_core.models import LoadedModel
from kvq_core.models.gradients import gradients
from kvq_core.models.scoring import Scoring, causal_attention


@dataclass(frozen=True)
class Samples:
    """keys (before RoPE) and values (layers, kv_heads, tokens, head_dim) float16, as a cache holds them."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class AttendedSamples:
    """``keys`` after RoPE and ``values`` as Samples has them, and ``gram`` (layers, kv_heads, head_dim, head_dim)
    float64: QᵀQ of all queries that read them, over their rows."""

    keys: Tensor
    values: Tensor
    gram: Tensor


@dataclass(frozen=True)
class WeighedSamples:
    """Samples with the squared gradients of the texts' own loss by each of their elements: ``key_weights`` and
    ``value_weights``, float32."""

    keys: Tensor
    values: Tensor
    key_weights: Tensor
    value_weights: Tensor


# what is kept of a layer's step: layer, tokens, queries, keys, values
_Keep = Callable[[int, slice, Tensor, Tensor, Tensor], None]


def collect(model: LoadedModel, sequences: list[list[int]], report: Report) -> Samples:
    """Run the model on each sequence by itself and keep what its cache would hold, in order."""
    samples = Samples(*_empty(model, sequences))
    rope = model.rope(max(map(len, sequences)))

    def keep(layer: int, now: slice, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        samples.keys[layer, :, now] = rope.on([layer]).unrotate(keys.float(), 0)[0].cpu()
        samples.values[layer, :, now] = values[0].cpu()

    _read(model, sequences, report, keep)
    return samples


def attended_samples(model: LoadedModel, sequences: list[list[int]], report: Report) -> AttendedSamples:
    """The same as attention reads it, with what reads it."""
    shape = model.shape
    gram = torch.zeros(shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim, dtype=torch.float64)
    found = AttendedSamples(*_empty(model, sequences), gram)

    def keep(layer: int, now: slice, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        found.keys[layer, :, now], found.values[layer, :, now] = keys[0].cpu(), values[0].cpu()
        gram[layer] += query_gram(queries.float(), keys.shape[1])[0].cpu()

    _read(model, sequences, report, keep)
    gram /= sum(map(len, sequences)) * shape.query_heads // shape.kv_heads
    return found


def weighed_samples(model: LoadedModel, sequences: list[list[int]], report: Report) -> WeighedSamples:
    """What ``collect`` keeps, with what each element matters to the texts' own loss."""
    keys, values = _empty(model, sequences)
    found = WeighedSamples(keys, values, *(torch.zeros(x.shape) for x in (keys, values)))
    rope, done = model.rope(max(map(len, sequences))), 0
    for ids in sequences:
        now = slice(done, done + len(ids))
        for layer, (key, value) in gradients(model, ids).items():
            turn = rope.on([layer])  # which keeps lengths: a gradient is turned back as its key is
            found.keys[layer, :, now] = turn.unrotate(key.x[None].float(), 0)[0].cpu()
            found.key_weights[layer, :, now] = turn.unrotate(key.gradient[None].float(), 0)[0].square().cpu()
            found.values[layer, :, now] = value.x.cpu()
            found.value_weights[layer, :, now] = value.gradient.float().square().cpu()
        done += len(ids)
        report(Progress("Reading text, and its gradients", done, sum(map(len, sequences)), "tokens"))
    return found


def _empty(model: LoadedModel, sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Room for keys and for values."""
    shape, total = model.shape, sum(map(len, sequences))
    size = (shape.layers, shape.kv_heads, total, shape.head_dim)
    return torch.empty(size, dtype=torch.float16), torch.empty(size, dtype=torch.float16)


def _read(model: LoadedModel, sequences: list[list[int]], report: Report, keep: _Keep) -> None:
    done, total = 0, sum(map(len, sequences))
    for ids in sequences:
        now = slice(done, done + len(ids))

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring, now: slice = now) -> Tensor:
            keep(layer, now, queries, keys, values)
            return causal_attention(queries, keys, values, how)

        model.checked(model.forward(torch.tensor([ids]), 0, attend, last_only=True))
        done += len(ids)
        report(Progress("Reading text", done, total, "tokens"))
