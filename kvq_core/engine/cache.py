"""A lane's cache: streams for keys and values on every device, fitted on the shared prefill."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from kvq_core.codecs.queries import QueryRounding
from kvq_core.codecs.stream import Change, Stream
from kvq_core.codecs.tiers import Tiers
from kvq_core.engine.fit import FitCache, FitSource, MethodFit, Stack, encoded, take, within
from kvq_core.engine.key_choices import Choices, fit_selection, fork
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.rotation import asked_turned, rounded_turned
from kvq_core.methods import KeySelection, ModelRef, Window
from kvq_core.models.rope import Rope
from kvq_core.spec import TENSORS, Assignment, Lane
from kvq_core.spec import Tensor as TensorName

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
    stream: Stream | Tiers
    rope: Rope | None = None
    rules: tuple[int, ...] = ()  # numbers of the lane's rules that store it
    local: bool = True  # whether its codes are a token's and layer's alone
    waiting: int = 0  # newest tokens that stand in the working copy alone, until some are due; see Rows.store_tokens
    left_out: Tensor | None = None  # biases (layers, kv_heads, head_dim) before RoPE that its keys are read without

    @property
    def plain(self) -> Stream:
        """The stream of a part whose tokens one rule stores."""
        assert isinstance(self.stream, Stream), "a lane of tiers is refused where only streams can be read"
        return self.stream

    @property
    def may_wait(self) -> bool:
        """Whether a window's tokens are read as they will be stored, and are all that a later step looks at."""
        return self.rope is None and isinstance(self.stream, Stream) and not self.stream.observes

    def preview(self, x: Tensor, index: int, start: int) -> Tensor:
        """What attention will read of tokens x (kv_heads, tokens, head_dim) of one of the layers, after RoPE, at
        ``start`` once they are held packed; of codecs whose codes are a token's alone."""
        if self.rope is None:
            return self.plain.preview(x, index, start)
        rope = self.rope.on([index])
        stored = rope.unrotate(x[None].float(), start)[0].to(torch.float16)
        return rope.rotate(self.plain.preview(stored, index, start)[None], start)[0]

    def before_rope(self, x: Tensor, position: int) -> Tensor:
        """New tokens x (layers, kv_heads, tokens, head_dim) as the stream takes them: keys before RoPE in fp16."""
        return x if self.rope is None else self.rope.unrotate(x, position).to(torch.float16)

    def of_model(self, groups: list[list[int]]) -> list[int]:
        """Its layers in the model, of the layers of every group."""
        return [groups[self.group][i] for i in self.layers.tolist()]

    def stored_by(self, rule: int) -> list[Stream]:
        """What of it one rule stores."""
        if isinstance(self.stream, Tiers):
            return self.stream.of_rule(rule)
        return [self.stream] if rule in self.rules else []

    def fork(self) -> "Part":
        return replace(self, stream=self.stream.fork())


@dataclass
class LaneCache:
    """The packed cache of one row. A forced row owns one; a free row forks it where the texts part."""

    parts: list[Part]
    fit_notes: tuple[str, ...] = ()
    prompt_tokens: int = 0
    selects: Choices = field(default_factory=dict)
    unchosen: tuple[tuple[KeySelection, tuple[int, ...]], ...] = ()  # to be fitted when the prompt has been read
    roundings: dict[int, QueryRounding] = field(default_factory=dict)  # of queries that meet a model layer's keys
    encoder_bytes: int = 0
    model_bytes: int = 0
    quantized_layers: frozenset[int] = field(default_factory=frozenset)
    layers: list[list[int]] = field(default_factory=list)  # of the model, by device group
    rules: int = 1  # of the lane
    stored_first: bool = False  # whether a token is stored before it is read

    @classmethod
    def of_prompt(
        cls,
        lane: Lane,
        groups: list[LayerGroup],
        rope: Rope,
        model: ModelRef | None = None,
        shared: FitCache | None = None,
        tokens: int | None = None,
        whole: int | None = None,
    ) -> "LaneCache":
        """Fit the methods of the lane's rules and encode the prompt, of which only the first ``tokens`` where the rest
        enters later; what other lanes of a run have alike is ``shared`` with them, and their blocks with it. ``whole``:
        tokens of the first turn, where that is not what ``groups`` hold.

        Raises MethodError where a method cannot handle the prompt's tensors.
        """
        source, shared = FitSource(groups, rope, model, tokens), shared or FitCache()
        cache = cls([], prompt_tokens=groups[0].keys.shape[-2], layers=[group.layers for group in groups])
        cache.rules = len(lane.every_rule)
        cache.stored_first = lane.chunks is not None and lane.chunks.own_chunk == "stored"
        layers = [layer for group in groups for layer in group.layers]
        windowed = frozenset[int]().union(*(group.windowed for group in groups))
        plan = lane.plan_of(layers, windowed, any(group.stateful for group in groups))
        cache.quantized_layers = frozenset(layer for assigned in plan for layer in assigned.layers)
        fits = _fits(plan, source, shared)
        for g in range(len(groups)):
            for stack in _stacks(plan):
                own = [(assigned, fits[assigned.fit][1]) for assigned in stack]
                if g in own[0][1].fitted:
                    key = (*(assigned.stream for assigned in stack), g, *source.entered)
                    cache._enter(own, g, source, shared.once(key, partial(encoded, own, g, source)).fork())
            for tensor in TENSORS:
                taken = {layer for assigned in plan if assigned.tensor == tensor for layer in assigned.layers}
                cache._leave(tensor, g, taken, source, shared)
        cache._note(list(fits.values()), several=cache.rules > 1)
        whole = whole or cache.prompt_tokens
        cache._choose_all(lane.selections(layers, windowed), source, shared, whole if tokens is None else tokens, whole)
        return cache

    def choose(self, choices: Choices, said: tuple[str, ...]) -> None:
        """Read chosen keys from now on."""
        self.selects.update(fork(choices))
        self.fit_notes += said

    def _choose_all(
        self,
        selections: list[tuple[KeySelection, tuple[int, ...]]],
        source: FitSource,
        shared: FitCache,
        read: int,
        whole: int,
    ) -> None:
        """Choose keys in the first ``read`` tokens, of which ``whole`` are the first turn's."""
        begun = replace(source, groups=[group.first(read) for group in source.groups])
        for selection, reading in selections:
            if selection.decoding and read < whole:
                self.unchosen += ((selection, reading),)
                continue
            choose = partial(fit_selection, selection, reading, begun, whole)
            self.choose(*shared.once(("select", selection, reading, *source.entered), choose))

    def _enter(self, stack: Stack, g: int, source: FitSource, stream: Stream | Tiers) -> None:
        """Take in what the rules of some layers store of a tensor on a device; the last of them, most of it."""
        assigned, fit = stack[-1]
        inside = within(assigned.layers, source.groups[g])
        layers = tuple(source.groups[g].layers[i] for i in inside)
        is_key = assigned.tensor == "keys"
        fitted = fit.fitted[g]
        if is_key and fitted.select is not None:
            select = asked_turned(fitted.select, fit.rotations[g], fit.folds[g])
            self.selects |= {layer: (select, at) for at, layer in enumerate(layers)}
        if is_key and (rounding := assigned.method.query_rounding(source.model)) is not None:
            turned = ((fit.turn(g, at), fit.folded(g, at)) for at in range(len(layers)))
            self.roundings |= {
                layer: rounded_turned(rounding, *behind) for layer, behind in zip(layers, turned, strict=True)
            }
        codecs = (fitted.key if is_key else fitted.value for fitted in (fit.fitted[g] for _, fit in stack))
        self.model_bytes += sum(codec.model_bytes for codec in codecs if codec is not None)
        rope = source.rope.on(layers) if is_key and any(fit.pre for _, fit in stack) else None
        local = assigned.method.token_local[0 if is_key else 1]
        self._add(assigned.tensor, g, inside, stream, rope, tuple(assigned.number for assigned, _ in stack), local)
        if is_key and (left_out := fit.left_out(g)) is not None:
            self.parts[-1].left_out = left_out.left_out

    def _leave(self, tensor: TensorName, g: int, taken: set[int], source: FitSource, shared: FitCache) -> None:
        """Enter what of a device no rule quantizes of a tensor: layers that are not ``taken``, windowed ones apart."""
        group = source.groups[g]
        left = [i for i, layer in enumerate(group.layers) if layer not in taken]
        inside = [i for i in left if group.layers[i] in group.windowed]
        for layers in filter(None, ([i for i in left if i not in inside], inside)):
            x = source.entering(take(group.keys if tensor == "keys" else group.values, layers)).float()
            enter = partial(Stream.of_prompt, x, UNTOUCHED, None)
            self._add(tensor, g, layers, shared.once((tensor, g, tuple(layers), x.shape[-2]), enter).fork())

    def _add(
        self,
        tensor: TensorName,
        group: int,
        layers: list[int],
        stream: Stream | Tiers,
        rope: Rope | None = None,
        rules: tuple[int, ...] = (),
        local: bool = True,
    ) -> None:
        kind: Kind = "key" if tensor == "keys" else "value"
        index = torch.tensor(layers, device=stream.device)
        self.parts.append(Part(kind, group, index, stream, rope, rules, local))

    def _note(self, fits: list[tuple[Assignment, MethodFit]], several: bool) -> None:
        """Keep what the fits say, of ``several`` rules with the one that each is of, and the size of their encoders."""
        notes: list[str] = []
        for assigned, fit in fits:
            codecs = (codec for fitted in fit.fitted.values() for codec in (fitted.key, fitted.value))
            self.encoder_bytes += sum(codec.encoder_bytes for codec in codecs if codec is not None)
            whose = f"{assigned.rule.named()}: " if several else ""
            own = frozenset(assigned.layers)
            notes += [whose + _said(note, layers, own) for note, layers in fit.notes.items()]
        self.fit_notes = tuple(notes)

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
        return min(part.stream.frozen(prompt_tokens) for part in self.parts)

    def pieces(self, part: Part) -> Iterator[tuple[int, Tensor]]:
        """What attention reads of one part, decoded from the store piece by piece: the position of its first token, and
        (layers, kv_heads, tokens, head_dim) after RoPE."""
        start = 0
        for piece in part.stream.decoded():
            yield start, piece if part.rope is None else part.rope.rotate(piece, start)
            start += piece.shape[-2]

    def append(self, part: Part, x: Tensor, position: int) -> None:
        """Add the new token x (layers, kv_heads, 1, head_dim), after RoPE, to a part's window."""
        part.stream.append(part.before_rope(x, position))

    def flush(self, part: Part) -> list[Change]:
        """Encode what is due; positions that changed, each with the new values from there on, after RoPE."""
        changes, rope = part.stream.flush(), part.rope
        return changes if rope is None else [(start, rope.rotate(values, start)) for start, values in changes]

    def enter(self, part: Part, x: Tensor, position: int, prompt: bool) -> tuple[int, Tensor]:
        """Add tokens x (layers, kv_heads, tokens, head_dim), after RoPE, at once; see Stream.enter."""
        first, values = part.stream.enter(part.before_rope(x, position), prompt)
        return first, values if part.rope is None else part.rope.rotate(values, first)

    def fork(self) -> "LaneCache":
        return replace(self, parts=[part.fork() for part in self.parts], selects=fork(self.selects))

    def by_layer(self) -> dict[int, dict[Kind, tuple[Part, int]]]:
        """Of every model layer: the part that holds its keys or values, and the layer's place in it."""
        found: dict[int, dict[Kind, tuple[Part, int]]] = {}
        for part in self.parts:
            for index, i in enumerate(part.layers.tolist()):
                found.setdefault(self.layers[part.group][i], {})[part.kind] = part, index
        return found

    def of(self, kind: Kind) -> Iterator[Part]:
        return (part for part in self.parts if part.kind == kind)


def _fits(plan: tuple[Assignment, ...], source: FitSource, shared: FitCache) -> dict[Any, tuple[Assignment, MethodFit]]:
    """Every fit of a plan once, with the first of the rules that have it."""
    fits: dict[Any, tuple[Assignment, MethodFit]] = {}
    for assigned in plan:
        make = partial(MethodFit.of, assigned.method, assigned.transforms, assigned.layers, source)
        fit = shared.once((*assigned.fit, source.entered[0]), make)
        fits.setdefault(assigned.fit, (assigned, fit))
    return fits


def _stacks(plan: tuple[Assignment, ...]) -> list[list[Assignment]]:
    """The rules that share the keys, or the values, of the same layers, in their order."""
    found: dict[tuple[TensorName, tuple[int, ...]], list[Assignment]] = {}
    for assigned in plan:
        found.setdefault((assigned.tensor, assigned.layers), []).append(assigned)
    return list(found.values())


def _said(note: str, layers: list[int], every: frozenset[int]) -> str:
    """A remark; where devices differ, with the layers it is about."""
    if not layers or every <= set(layers):
        return note
    first, last = min(layers), max(layers)
    return f"layer {first}: {note}" if first == last else f"layers {first} to {last}: {note}"
