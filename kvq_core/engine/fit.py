"""A method fitted on the prompt's tensors of some layers, device by device, and what lanes of one run share of that."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvq_core.codecs.center import Center
from kvq_core.codecs.fold import Fold
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.stream import Stream
from kvq_core.codecs.tiers import TierPlan, Tiers, TierStoring
from kvq_core.engine.centering import center_of, center_prompt, slow_biases, slow_note
from kvq_core.engine.prefill import LayerGroup
from kvq_core.engine.rotation import fold_of, fold_prompt, rotate_prompt, rotation_note, rotation_of
from kvq_core.methods import Codec, Fitted, Method, ModelRef, Prompt, Window
from kvq_core.models.pairs import pairs_of
from kvq_core.models.rope import Rope
from kvq_core.spec import Assignment, Transforms, layer_words

Made = TypeVar("Made")


@dataclass(frozen=True)
class FitSource:
    """What lanes are encoded from: the shared prefill, its RoPE, and the model it is of, where that is known.

    ``now``: how many of the first tokens are encoded now, where the others enter later.
    """

    groups: list[LayerGroup]
    rope: Rope
    model: ModelRef | None = None
    now: int | None = None

    @property
    def entered(self) -> tuple[int, int | None]:
        """Tokens that methods are fitted on, and those that are encoded now: what tells sources of one run apart."""
        return self.groups[0].keys.shape[-2], self.now

    def entering(self, x: Tensor) -> Tensor:
        """The tokens of x (..., tokens, head_dim) that are encoded now."""
        return x[..., : self.now, :]

    def begun(self, codec: Codec | None) -> Codec | None:
        """A fitted codec, for the tokens that are encoded now."""
        return codec if codec is None or self.now is None else codec.begun(self.now)

    @property
    def context(self) -> int:
        """Tokens of the prompt and of the answer, at most."""
        return len(self.rope.cos)

    @property
    def layers(self) -> int:
        return sum(len(group.layers) for group in self.groups)


@dataclass
class MethodFit:
    """A method's codecs by device group; ``notes``: its remarks, each with the layers it is about."""

    pre: bool  # keys are stored before RoPE
    fitted: dict[int, Fitted] = field(default_factory=dict)
    centers: dict[int, Center | None] = field(default_factory=dict)
    folds: dict[int, Fold | None] = field(default_factory=dict)
    rotations: dict[int, Hadamard | None] = field(default_factory=dict)
    notes: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        method: Method,
        how: Transforms,
        layers: tuple[int, ...],
        source: FitSource,
    ) -> "MethodFit":
        """Fit a method on some of the model's layers; ``how``: what it sees in place of the tensors.

        Raises MethodError where the method cannot handle the prompt's tensors.
        """
        fit = cls(method.key_space == "pre")
        inside = {g: own for g, group in enumerate(source.groups) if (own := within(layers, group))}
        prompts = ((g, fit._seen(method, how, g, own, source)) for g, own in inside.items())
        if method.spans_layers:
            every = dict(prompts)
            method, prompts = fit._decide(method, layers, every, source), ((g, every.pop(g)) for g in inside)
        for g, prompt in prompts:  # one at a time is held
            fit.fitted[g] = method.fit(prompt)
            for note in fit.fitted[g].notes:
                fit.notes.setdefault(note, []).extend(prompt.layers)
        return fit

    def _seen(
        self,
        method: Method,
        how: Transforms,
        g: int,
        inside: list[int],
        source: FitSource,
    ) -> Prompt:
        """What the method is fitted on of a group's layers."""
        group = source.groups[g]
        prompt = _prompt(method, group, inside, source, self.pre)
        bias = None if group.key_bias is None else take(group.key_bias, inside)
        if how.center == "slow" and bias is not None:
            pairs = pairs_of(source.rope, prompt.layers)
            bias = slow_biases(bias, pairs, source.context)
            self.notes.setdefault(slow_note(pairs, source.context), []).extend(prompt.layers)
        self.centers[g] = center_of(how.center, prompt, source.rope.on(prompt.layers), self.pre, bias)
        prompt = center_prompt(prompt, self.centers[g])
        self.folds[g] = fold_of(how.fold, prompt)
        self.rotations[g] = turn = rotation_of(how.rotate, how.rotate_block, prompt)
        if turn is not None:
            self.notes[rotation_note(turn)] = []
        return rotate_prompt(fold_prompt(prompt, self.folds[g]), turn, keys=not self.pre)

    def storing(self, assigned: Assignment, g: int, source: FitSource) -> TierStoring:
        """How a rule stores its tensor on a device."""
        fitted, is_key = self.fitted[g], assigned.tensor == "keys"
        codec = fitted.key if is_key else fitted.value
        center, fold = (self.centers[g], self.folds[g]) if is_key else (None, None)
        center = None if center is None or center.left_out is not None else center
        return TierStoring(assigned.window, source.begun(codec), center, self.rotations[g], fold, assigned.number)

    def left_out(self, g: int) -> Center | None:
        """The constant that no key of a device's layers is read with; None where there is none."""
        center = self.centers[g]
        return None if center is None or center.left_out is None else center

    def turn(self, g: int, layer: int) -> Hadamard | None:
        """What turns one of a device's layers, counted from the first that is fitted there."""
        rotation = self.rotations[g]
        return None if rotation is None else rotation.on(layer)

    def folded(self, g: int, layer: int) -> Fold | None:
        """The scales of one of a device's layers, counted alike."""
        fold = self.folds[g]
        return None if fold is None else fold.on(layer)

    def _decide(self, method: Method, layers: tuple[int, ...], prompts: dict[int, Prompt], source: FitSource) -> Method:
        """The method with all decided that spans its layers; says which these are where they are not the model's."""
        where = "all layers" if len(layers) == source.layers else layer_words(layers)
        if len(prompts) > 1:
            method = method.across_layers(Prompt.join(list(prompts.values())))
            self.notes[f"decided on the prompt, over {where}: {method.summary()}"] = []
        elif len(layers) < source.layers:
            self.notes[f"decided over {where}"] = []
        return method


Stack = list[tuple[Assignment, MethodFit]]  # rules that share a tensor of some layers, in their order


def tiers_of(stack: Stack, g: int, source: FitSource) -> TierPlan:
    """How rules share a tensor on a device, by the tokens each is for."""
    body, ends, spans = TierStoring(), dict[str, tuple[int, TierStoring]](), list[tuple[tuple[int, int], TierStoring]]()
    for assigned, fit in stack:
        how, (kind, count) = fit.storing(assigned, g, source), assigned.rule.tier
        spans += [(span, how) for span in assigned.rule.spans]
        if kind in ("first", "last"):
            ends[kind] = count, how
        elif kind == "all":
            body = how
    if (sinks := stack[0][0].head) and "first" not in ends:  # in fp16: no tail may take them
        ends["first"] = sinks, TierStoring(Window(sinks), rule=body.rule)
    return TierPlan(body, ends.get("first"), ends.get("last"), tuple(spans))


def encoded(stack: Stack, g: int, source: FitSource) -> Stream | Tiers:
    """The prompt of a device's layers as rules store it, before it belongs to any lane."""
    group, (assigned, fit) = source.groups[g], stack[-1]
    inside = within(assigned.layers, group)
    x = source.entering(take(group.keys if assigned.tensor == "keys" else group.values, inside)).float()
    if assigned.tensor == "keys" and any(fit.pre for _, fit in stack):
        x = source.rope.on(tuple(group.layers[i] for i in inside)).unrotate(x, 0)
    if assigned.tensor == "keys" and (left_out := fit.left_out(g)) is not None:
        x = left_out.without(x, 0)
    if len(stack) == 1 and assigned.rule.tokens == "all":
        how = fit.storing(assigned, g, source)
        return how.stream(x, 0, how.window)
    return Tiers.of_prompt(x, tiers_of(stack, g, source))


class FitCache:
    """What several lanes of one run need alike, made once by whichever comes first; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[Any, ...], Future[Any]] = {}

    def once(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """What ``make`` returned for this key, or raised: the first time now, afterwards the same."""
        with self._lock:
            mine = key not in self._made
            made = self._made.setdefault(key, Future())
        if mine:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)
        return made.result()  # type: ignore[no-any-return]

    def keep(self, plans: Iterable[Sequence[Assignment]]) -> None:
        """Forget what was made for other plans than these, which are those of the lanes to come."""
        needed = {made for plan in plans for assigned in plan for made in (assigned.fit, assigned.stream)}
        # fits are kept under what decides them, streams under what decides the first of the rules that share them
        self._made = {key: made for key, made in self._made.items() if key[:3] in needed or key[0] in needed}


def within(layers: tuple[int, ...], group: LayerGroup) -> list[int]:
    """Indices within a device group of some of the model's layers."""
    asked = set(layers)
    return [i for i, layer in enumerate(group.layers) if layer in asked]


def take(x: Tensor, layers: list[int]) -> Tensor:
    """Some layers of x, without a copy where they are all of them."""
    return x if len(layers) == x.shape[0] else x[layers]


def _prompt(method: Method, group: LayerGroup, inside: list[int], source: FitSource, pre: bool) -> Prompt:
    """What a method is told of some layers of a device."""
    keys, values = take(group.keys, inside).float(), take(group.values, inside).float()
    layers = tuple(group.layers[i] for i in inside)
    stored = source.rope.on(layers).unrotate(keys, 0) if pre else keys
    queries = take(group.queries, inside).float() if method.needs_queries else None
    gram = take(group.query_gram, inside) if method.needs_queries else None
    scaling = tuple(group.scaling[i] for i in inside if group.scaling)
    told = Prompt(stored, values, queries, gram=gram, model=source.model, layers=layers, rotated=keys, scaling=scaling)
    return replace(told, pairs=_pairs(source.rope, layers, keys.device))


def _pairs(rope: Rope, layers: tuple[int, ...], device: torch.device) -> Tensor | None:
    """The RoPE pair of each channel (layers, head_dim); None where that cannot be told."""
    if not rope.on(layers).known or len(rope.cos) <= 1 or rope.cos.is_meta:
        return None
    return torch.stack([own.of for own in pairs_of(rope, layers)]).to(device)
