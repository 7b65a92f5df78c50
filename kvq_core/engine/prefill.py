"""One prefill for all lanes, in chunks, keeping what methods and captures need of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch
from torch import Tensor

from kvq_core.methods.base import query_gram
from kvq_core.models import LoadedModel
from kvq_core.models.lockstep import causal_attention

CHUNK = 512  # tokens a forward pass; cancelling waits for one of these at most


@dataclass
class LayerGroup:
    """Layers that live on one device, in order, with the prompt's tensors stacked over them.

    keys, values (layers, kv_heads, tokens, head_dim), queries (layers, query_heads, tokens, head_dim; of no tokens
    where they are not kept), after RoPE, as ``Held`` says. ``layers`` are indices in the model, ``scaling`` what it
    multiplies their scores with, ``key_bias`` (layers, kv_heads, head_dim) the bias of their key projections, where
    these have one and no norm follows.
    """

    layers: list[int]
    device: torch.device
    keys: Tensor
    values: Tensor
    queries: Tensor
    scaling: tuple[float, ...] = ()
    key_bias: Tensor | None = None

    def first(self, tokens: int) -> "LayerGroup":
        """Of the prompt's first tokens alone."""
        keys, values, queries = (x[..., :tokens, :] for x in (self.keys, self.values, self.queries))
        return LayerGroup(self.layers, self.device, keys, values, queries, self.scaling, self.key_bias)

    @cached_property
    def query_gram(self) -> Tensor:
        """QᵀQ of the prompt's queries per KV head, float64 (layers, kv_heads, head_dim, head_dim)."""
        return query_gram(self.queries, self.keys.shape[1])


@dataclass(frozen=True)
class Held:
    """How the prompt's tensors are held: in float32, or in the model's ``dtype``, in which it computed them, and so are
    the working copies of rows then; with ``queries`` or without; stacked over all layers of a device, or over so many
    ``layers``, which bounds what is encoded and decoded at once."""

    dtype: torch.dtype = torch.float32
    queries: bool = True
    layers: int | None = None


class Prefill:
    """Full-precision prefill of one prompt. Iterate ``run`` to the end, then read ``groups``, ``logits`` and, where
    positions are ``scored``, ``hidden``: what the head reads there, (positions, hidden size).

    Raises ModelError where the model answers something else than numbers.
    """

    def __init__(
        self,
        model: LoadedModel,
        ids: list[int],
        scored: Sequence[int] = (),
        turns: Sequence[int] = (),
        held: Held | None = None,
    ):
        """``turns``: where later turns begin, so that the first is computed as if there were no others."""
        self.model = model
        self.ids = ids
        self.scored = scored
        self.turns = turns
        self.groups = list(_groups(model, len(ids), held or Held()))
        self.place = {layer: (g, i) for g in self.groups for i, layer in enumerate(g.layers)}
        self.logits = torch.empty(0)  # (vocabulary,) float32, those that choose the first new token
        self.hidden = torch.empty(0)
        self._start = 0

    def run(self) -> Iterator[int]:
        """Process a chunk a turn; yields the number of prompt tokens done."""
        hidden = []
        for start, end in self._chunks():
            self._start = start
            held = self.model.hidden(torch.tensor([self.ids[start:end]]), start, self._attend)
            self.logits = self.model.checked(self.model.head(held[:, -1:]))[0, -1]
            hidden.append(held[0, [p - start for p in self.scored if start <= p < end]])
            yield end
        self.hidden = torch.cat(hidden)

    @property
    def nbytes(self) -> int:
        """Of the tensors it holds once it has run."""
        stacked = [x for group in self.groups for x in (group.keys, group.values, group.queries)]
        return sum(x.numel() * x.element_size() for x in (*stacked, self.logits, self.hidden))

    def _chunks(self) -> Iterator[tuple[int, int]]:
        for first, last in pairwise([0, *self.turns, len(self.ids)]):
            for start in range(first, last, CHUNK):
                yield start, min(start + CHUNK, last)

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        group, i = self.place[layer]
        end = self._start + keys.shape[-2]
        now = slice(self._start, end)
        if group.queries.shape[-2]:
            group.queries[i, :, now] = queries[0]
        group.keys[i, :, now] = keys[0]
        group.values[i, :, now] = values[0]
        past = [t[i : i + 1, :, :end].to(queries.dtype) for t in (group.keys, group.values)]
        return causal_attention(queries, past[0], past[1], scaling)


def _groups(model: LoadedModel, tokens: int, held: Held) -> Iterator[LayerGroup]:
    shape = model.shape
    most = held.layers or shape.layers
    by_device: dict[torch.device, list[int]] = {}
    for layer, device in enumerate(model.layer_devices):
        by_device.setdefault(device, []).append(layer)
    stacks = [(device, every[i : i + most]) for device, every in by_device.items() for i in range(0, len(every), most)]
    for device, layers in stacks:
        empty = partial(torch.empty, dtype=held.dtype, device=device)
        kv = (len(layers), shape.kv_heads, tokens, shape.head_dim)
        keys, values = empty(kv), empty(kv)
        queries = empty((len(layers), shape.query_heads, tokens if held.queries else 0, shape.head_dim))
        bias = None if model.key_bias is None else model.key_bias[layers].to(device)
        yield LayerGroup(layers, device, keys, values, queries, tuple(shape.scaling[i] for i in layers), bias)
