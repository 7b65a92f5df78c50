"""One prefill for all lanes, in chunks, keeping what methods and captures need of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import torch
from torch import Tensor

from kvq_core.methods.prompt import query_gram
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.models.survey import survey

CHUNK = 512  # tokens a forward pass; cancelling waits for one of these at most


@dataclass
class LayerGroup:
    """Layers that live on one device, in order, with the prompt's tensors stacked over them.

    keys, values (layers, kv_heads, tokens, head_dim), queries (layers, query_heads, tokens, head_dim; of no tokens
    where they are not kept), after RoPE, as ``Precision`` says; values may have another head_dim. ``layers`` are
    indices in the model, ``scaling`` what it multiplies their scores with, ``key_bias`` (layers, kv_heads, head_dim)
    the bias of their key projections, where these have one and no norm follows. ``windowed``: those of them that attend
    to a window or a chunk of tokens; ``stateful``: whether layers of the model, whichever, keep a state.
    """

    layers: list[int]
    device: torch.device
    keys: Tensor
    values: Tensor
    queries: Tensor
    scaling: tuple[float, ...] = ()
    key_bias: Tensor | None = None
    windowed: frozenset[int] = frozenset()
    stateful: bool = False
    looked: tuple[int, ...] | None = None  # layers that captures look at, see ModelShape.captured; None: all

    @property
    def captured(self) -> Sequence[int]:
        """Layers that captures look at."""
        return self.layers if self.looked is None else self.looked

    def first(self, tokens: int) -> "LayerGroup":
        """Of the prompt's first tokens alone."""
        keys, values, queries = (x[..., :tokens, :] for x in (self.keys, self.values, self.queries))
        return replace(self, keys=keys, values=values, queries=queries)

    def of(self, layers: Sequence[int]) -> "LayerGroup | None":
        """Of some of its layers, in their order; itself where they are all, None where they are none."""
        if len(layers) == len(self.layers) or not layers:
            return self if layers else None
        at = [self.layers.index(layer) for layer in layers]
        keys, values, queries = self.keys[at], self.values[at], self.queries[at]
        scaling = tuple(self.scaling[i] for i in at if self.scaling)
        bias = None if self.key_bias is None else self.key_bias[at]
        return replace(
            self, layers=list(layers), keys=keys, values=values, queries=queries, scaling=scaling, key_bias=bias
        )

    @cached_property
    def query_gram(self) -> Tensor:
        """QᵀQ of the prompt's queries per KV head, float64 (layers, kv_heads, head_dim, head_dim)."""
        return query_gram(self.queries, self.keys.shape[1])


@dataclass(frozen=True)
class Precision:
    """How the prompt's tensors are held: in float32, or in the model's ``dtype``, in which it computed them, and so are
    the working copies of rows then; with ``queries`` or without; stacked over all layers of a device, or over so many
    ``layers``, which bounds what is encoded and decoded at once."""

    dtype: torch.dtype = torch.float32
    queries: bool = True
    layers: int | None = None


class SharedPrefill:
    """Full-precision prefill of one prompt. Iterate ``run`` to the end, then read ``groups``, ``logits`` and, where
    positions are ``scored``, ``hidden``: what the head reads there, (positions, hidden size); ``states`` of layers that
    are no attention, where there are such.

    Raises ModelError where the model answers something else than numbers.
    """

    def __init__(
        self,
        model: LoadedModel,
        ids: list[int],
        scored: Sequence[int] = (),
        turns: Sequence[int] = (),
        held: Precision | None = None,
    ):
        """``turns``: where later turns begin, so that the first is computed as if there were no others."""
        self.model = model
        self.ids = ids
        self.scored = scored
        self.turns = turns
        self.groups = list(_groups(model, len(ids), held or Precision()))
        self.place = {layer: (g, i) for g in self.groups for i, layer in enumerate(g.layers)}
        self.logits = torch.empty(0)  # (vocabulary,) float32, those that choose the first new token
        self.hidden = torch.empty(0)
        self.states = model.states()
        self._start = 0

    def run(self) -> Iterator[int]:
        """Process a chunk a turn; yields the number of prompt tokens done."""
        hidden = []
        for start, end in self._chunks():
            self._start = start
            held = self.model.hidden(torch.tensor([self.ids[start:end]]), start, self._attend, self.states)
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
            size = CHUNK if self.model.shape.in_chunks else last - first
            for start in range(first, last, size):
                yield start, min(start + size, last)

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        group, i = self.place[how.holder(layer)]
        end = self._start + keys.shape[-2]
        now = slice(self._start, end)
        if how.reads is None:
            if group.queries.shape[-2]:
                group.queries[i, :, now] = queries[0]
            group.keys[i, :, now] = keys[0]
            group.values[i, :, now] = values[0]
        past = [t[i : i + 1, :, :end].to(queries) for t in (group.keys, group.values)]
        return causal_attention(queries, past[0], past[1], how)


def _groups(model: LoadedModel, tokens: int, held: Precision) -> Iterator[LayerGroup]:
    shape = model.shape
    most = held.layers or shape.layers
    alike: dict[tuple[torch.device, int, int, int, int], list[int]] = {}
    calls = survey(model.model)
    for layer in shape.keyed:
        kind, asking = shape.kinds[layer], calls[layer].query_heads
        of = model.layer_devices[layer], asking, kind.kv_heads, kind.key_dim, kind.value_dim
        alike.setdefault(of, []).append(layer)
    stacks = [(how, every[i : i + most]) for how, every in alike.items() for i in range(0, len(every), most)]
    for (device, asking, heads, key_dim, value_dim), layers in stacks:
        empty = partial(torch.empty, dtype=held.dtype, device=device)
        keys, values = (empty((len(layers), heads, tokens, dim)) for dim in (key_dim, value_dim))
        queries = empty((len(layers), asking, tokens if held.queries else 0, key_dim))
        same = layers[0] in shape.alike
        bias = None if model.key_bias is None or not same else model.key_bias[layers].to(device)
        scaling, windowed = tuple(shape.scaling[i] for i in layers), frozenset(layers) & frozenset(shape.windowed)
        looked = tuple(layer for layer in layers if layer in shape.captured)
        yield LayerGroup(layers, device, keys, values, queries, scaling, bias, windowed, shape.stateful, looked)
