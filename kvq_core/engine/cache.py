"""A lane's cache: streams for keys and values on every device, fitted on the shared prefill."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kvq_core.codecs.center import Center
from kvq_core.codecs.stream import Stream
from kvq_core.engine.centering import center_of, centred
from kvq_core.engine.prefill import LayerGroup
from kvq_core.methods import Codec, Fitted, Method, ModelRef, Prompt, Window
from kvq_core.methods.base import Select
from kvq_core.models.rope import Rope
from kvq_core.spec import Lane

Kind = Literal["key", "value"]
KINDS: tuple[Kind, Kind] = ("key", "value")
UNTOUCHED = Window(step=None)


@dataclass
class Part:
    """One stream and the layers (indices within its device group) it covers; ``rope``: theirs, where keys are stored
    before it."""

    kind: Kind
    group: int
    layers: Tensor
    stream: Stream
    rope: Rope | None = None

    def fork(self) -> "Part":
        return replace(self, stream=self.stream.fork())


@dataclass
class LaneCache:
    """The packed cache of one row. A forced row owns one; a free row forks it where the texts part."""

    parts: list[Part]
    fit_notes: tuple[str, ...] = ()
    prompt_tokens: int = 0
    selects: dict[int, tuple[Select, int]] = field(default_factory=dict)  # by model layer
    encoder_bytes: int = 0
    model_bytes: int = 0
    quantized_layers: frozenset[int] = field(default_factory=frozenset)
    layers: list[list[int]] = field(default_factory=list)  # of the model, by device group
    stored_first: bool = False  # whether a token is stored before it is read

    @classmethod
    def of_prompt(
        cls,
        lane: Lane,
        groups: list[LayerGroup],
        rope: Rope,
        model: ModelRef | None = None,
        tokens: int | None = None,
    ) -> "LaneCache":
        """Fit the lane's method and encode the prompt, of which only the first ``tokens`` where the rest enters later.

        Raises MethodError where the method cannot handle the prompt's tensors.
        """
        entering = slice(None, tokens)
        method, windows = lane.build(), lane.windows()
        pre = method.key_space == "pre" and method.quantizes
        cache = cls([], prompt_tokens=groups[0].keys.shape[-2], layers=[group.layers for group in groups])
        cache.stored_first = lane.chunks is not None and lane.chunks.own_chunk == "stored"
        taken = [_inside(lane, group) if method.quantizes else [] for group in groups]
        prompts = {
            g: _prompt(method, group, inside, rope if pre else None, model)
            for g, (group, inside) in enumerate(zip(groups, taken, strict=True))
            if inside
        }
        centers = {g: _center(lane, groups[g], taken[g], prompt, rope, pre) for g, prompt in prompts.items()}
        to_fit = {g: centred(prompt, centers[g]) for g, prompt in prompts.items()}
        notes: dict[str, list[int]] = {}  # the layers of which each is said
        if len(prompts) > 1 and method.spans_layers:
            method = method.across_layers(Prompt.join(list(to_fit.values())))
            notes[f"decided on the prompt, over all layers: {method.summary()}"] = []
        for g, (group, inside) in enumerate(zip(groups, taken, strict=True)):
            outside = [i for i in range(len(group.layers)) if i not in inside]
            if inside:
                prompt = prompts.pop(g)
                fitted = method.fit(to_fit.pop(g))
                for note in fitted.notes:
                    notes.setdefault(note, []).extend(prompt.layers)
                own = rope.on(prompt.layers) if pre else None
                cache._enter(g, inside, prompt, _begun(fitted, tokens), windows, own, centers[g], entering)
            if outside:
                cache._add("key", g, outside, _take(group.keys, outside)[..., entering, :], UNTOUCHED, None)
                cache._add("value", g, outside, _take(group.values, outside)[..., entering, :], UNTOUCHED, None)
        cache.fit_notes = tuple(_said(note, layers, cache.quantized_layers) for note, layers in notes.items())
        return cache

    def _enter(
        self,
        group: int,
        inside: list[int],
        prompt: Prompt,
        fitted: Fitted,
        windows: tuple[Window, Window],
        rope: Rope | None,
        center: Center | None,
        entering: slice,
    ) -> None:
        """Encode the layers of a device that the lane quantizes; ``rope``: theirs, of keys stored before it."""
        self.quantized_layers |= set(prompt.layers)
        for codec, window in zip((fitted.key, fitted.value), windows, strict=True):
            if codec is not None:
                self.encoder_bytes += codec.encoder_bytes
                self.model_bytes += codec.model_bytes if window.step is not None else 0
        assert prompt.rotated is not None
        # keys left alone (tensors = values) are kept after RoPE whatever the method's space is
        untouched = windows[0].step is None
        if fitted.select is not None and not untouched:
            self.selects |= {layer: (fitted.select, at) for at, layer in enumerate(prompt.layers)}
        keys = prompt.rotated if untouched else prompt.keys
        keys, values = keys[..., entering, :], prompt.values[..., entering, :]
        self._add("key", group, inside, keys, windows[0], fitted.key, None if untouched else rope, center)
        self._add("value", group, inside, values, windows[1], fitted.value)

    def _add(
        self,
        kind: Kind,
        group: int,
        layers: list[int],
        x: Tensor,
        window: Window,
        codec: Codec | None,
        rope: Rope | None = None,
        center: Center | None = None,
    ) -> None:
        index = torch.tensor(layers, device=x.device)
        self.parts.append(Part(kind, group, index, Stream.of_prompt(x, window, codec, center), rope))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks of the fit and of the blocks as they stand."""
        remarks: dict[str, list[int]] = {}
        for part in self.parts:
            for remark in part.stream.remarks():
                held = (self.layers[part.group][i] for i in part.layers.tolist())
                remarks.setdefault(f"{part.kind}s: {remark}", []).extend(held)
        return (*self.fit_notes, *(_said(remark, held, self.quantized_layers) for remark, held in remarks.items()))

    @property
    def observes(self) -> bool:
        """Whether any part looks back on a step."""
        return any(part.stream.observes for part in self.parts)

    def frozen(self, prompt_tokens: int) -> int:
        """Length of the prompt's prefix that no later step changes in any layer."""
        return min(part.stream.window.frozen(prompt_tokens) for part in self.parts)

    def pieces(self, part: Part) -> Iterator[tuple[int, Tensor]]:
        """What attention reads of one part, decoded from the store piece by piece: the position of its first token, and
        (layers, kv_heads, tokens, head_dim) after RoPE."""
        start = 0
        for piece in part.stream.decoded():
            yield start, piece if part.rope is None else part.rope.rotate(piece, start)
            start += piece.shape[-2]

    def append(self, part: Part, x: Tensor, position: int) -> None:
        """Add the new token x (layers, kv_heads, 1, head_dim), after RoPE, to a part's window."""
        part.stream.append(x if part.rope is None else part.rope.unrotate(x, position))

    def flush(self, part: Part) -> tuple[int, Tensor] | None:
        """Encode what is due; the first position that changed and its new values after RoPE."""
        changed = part.stream.flush()
        if changed is None or part.rope is None:
            return changed
        start, values = changed
        return start, part.rope.rotate(values, start)

    def enter(self, part: Part, x: Tensor, position: int, prompt: bool) -> tuple[int, Tensor]:
        """Add tokens x (layers, kv_heads, tokens, head_dim), after RoPE, at once; see Stream.enter."""
        rope = part.rope
        first, values = part.stream.enter(x if rope is None else rope.unrotate(x, position), prompt)
        return first, values if rope is None else rope.rotate(values, first)

    def fork(self) -> "LaneCache":
        return replace(self, parts=[part.fork() for part in self.parts])

    def by_layer(self) -> dict[int, dict[Kind, tuple[Part, int]]]:
        """Of every model layer: the part that holds its keys or values, and the layer's place in it."""
        found: dict[int, dict[Kind, tuple[Part, int]]] = {}
        for part in self.parts:
            for index, i in enumerate(part.layers.tolist()):
                found.setdefault(self.layers[part.group][i], {})[part.kind] = part, index
        return found

    def of(self, kind: Kind) -> Iterator[Part]:
        return (part for part in self.parts if part.kind == kind)


def _inside(lane: Lane, group: LayerGroup) -> list[int]:
    """Indices within a device group of the layers that a lane quantizes."""
    return [i for i, layer in enumerate(group.layers) if lane.layers == "all" or layer in lane.layers]


def _prompt(method: Method, group: LayerGroup, inside: list[int], rope: Rope | None, model: ModelRef | None) -> Prompt:
    """What a method is told of some layers of a device; ``rope``: the model's, where keys are stored before it."""
    keys, values = _take(group.keys, inside), _take(group.values, inside)
    layers = tuple(group.layers[i] for i in inside)
    stored = keys if rope is None else rope.on(layers).unrotate(keys, 0)
    queries = _take(group.queries, inside) if method.needs_queries else None
    gram = _take(group.query_gram, inside) if method.needs_queries else None
    scaling = tuple(group.scaling[i] for i in inside if group.scaling)
    return Prompt(stored, values, queries, gram=gram, model=model, layers=layers, rotated=keys, scaling=scaling)


def _center(lane: Lane, group: LayerGroup, inside: list[int], prompt: Prompt, rope: Rope, pre: bool) -> Center | None:
    """What the keys of a device's quantized layers are centred on."""
    bias = None if group.key_bias is None else _take(group.key_bias, inside)
    return center_of(lane.center, prompt, rope.on(prompt.layers), pre, bias)


def _begun(fitted: Fitted, tokens: int | None) -> Fitted:
    """What was fitted, for a prompt of which the first ``tokens`` enter now."""
    if tokens is None:
        return fitted
    key, value = (None if codec is None else codec.begun(tokens) for codec in (fitted.key, fitted.value))
    return replace(fitted, key=key, value=value)


def _said(note: str, layers: list[int], every: frozenset[int]) -> str:
    """A remark; where devices differ, with the layers it is about."""
    if not layers or every <= set(layers):
        return note
    first, last = min(layers), max(layers)
    return f"layer {first}: {note}" if first == last else f"layers {first} to {last}: {note}"


def _take(x: Tensor, layers: list[int]) -> Tensor:
    """Some layers of x, without a copy where they are all of them."""
    return x if len(layers) == x.shape[0] else x[layers]
