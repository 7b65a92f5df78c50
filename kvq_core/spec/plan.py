"""Which rule of a lane stores what: the rules that share a layer's keys or values, and what each has of them."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from pydantic import ValidationError

from kvq_core.complaints import first_line
from kvq_core.errors import SpecError
from kvq_core.methods import Method, ModelShape, Window
from kvq_core.spec.layers import layer_words
from kvq_core.spec.rule import TENSORS, Rule, Tensor
from kvq_core.spec.transforms import Transforms

_ORDER = ("spans", "first", "last", "all")


@dataclass(frozen=True)
class Assignment:
    """Layers of a model whose keys, or whose values, one rule of a lane stores; ``number``: the rule's, from 0.

    ``head`` and ``tail``: how many first and newest tokens other rules of the same layers hold, or this one; first ones
    that a rule for all the others keeps in fp16 count where a tail or spans stand before it. ``group``: tokens that
    leave the newest ones together, where a rule holds these apart.
    """

    number: int
    rule: Rule
    tensor: Tensor
    layers: tuple[int, ...]
    head: int = 0
    tail: int = 0
    group: int = 1

    @cached_property
    def method(self) -> Method:
        return self.rule.build()

    @property
    def stream(self) -> tuple[Hashable, ...]:
        """What decides the stream: assignments of a run's lanes that agree in it store one and the same."""
        apart = self.rule.tokens, self.head, self.tail
        return self.method.for_tensor(self.tensor), *self.fit[1:], self.tensor, self.window, *apart

    @cached_property
    def window(self) -> Window:
        return self.rule.windows()[TENSORS.index(self.tensor)]

    @property
    def fit(self) -> tuple[Hashable, ...]:
        """What decides the fit: assignments that agree in it take their codecs from one."""
        return self.method, self.transforms, self.layers

    @property
    def transforms(self) -> Transforms:
        """What the method is fitted behind: of keys and values of one rule alike, though only keys lose a constant."""
        return self.rule.transforms

    def without(self, layers: frozenset[int]) -> "Assignment | None":
        """It without these layers, which stay fp16; None where no other is left."""
        rest = tuple(layer for layer in self.layers if layer not in layers)
        return replace(self, layers=rest) if rest else None

    def of_one(self, other: "Assignment") -> bool:
        """Whether it is of the same rule and tensor."""
        return (self.number, self.tensor) == (other.number, other.tensor)

    def alike(self, other: "Assignment") -> bool:
        """Whether it stores the same tokens of its layers by the same rule."""
        return self.of_one(other) and (self.head, self.tail) == (other.head, other.tail)

    @property
    def beside(self) -> bool:
        """Whether it is of spans, which are kept beside what another rule stores of the same tokens."""
        return self.rule.tier[0] == "spans"

    def _entered(self, tokens: int) -> tuple[Window, int]:
        """The window that its tokens pass, and how many have entered it once ``tokens`` have entered the cache."""
        rest = max(0, tokens - self.head)
        kind = self.rule.tier[0]
        if kind == "first":
            return replace(self.window, recent=0), min(tokens, self.head)
        if kind == "last":
            older = Window(recent=self.tail, step=self.group).packed(rest)
            return replace(self.window, sink=0), rest - older
        if self.tail:
            return Window(recent=self.tail, step=self.group), rest
        return (replace(self.window, sink=0) if self.head else self.window), rest

    def packed(self, tokens: int) -> int:
        """Tokens it holds encoded once a prompt of ``tokens`` has entered."""
        if self.beside:
            return self.rule.tier[1]
        window, entered = self._entered(tokens)
        return window.packed(entered)

    def packed_later(self, prompt: int, tokens: int) -> int:
        """Tokens it holds encoded once ``tokens`` have entered, those after the ``prompt`` one by one."""
        if self.beside or self.window.prompt_only:
            return self.packed(prompt)
        window, entered = self._entered(tokens)
        if not window.whole_prompt:
            return window.packed(entered)
        first = self.packed(prompt)
        return first + window.leaving(max(0, entered - window.sink) - first)

    def blocks(self, prompt: int, tokens: int) -> Iterator[tuple[int, int, int, bool]]:
        """What it encodes together: the position of the first token, tokens, how many such blocks there are, and
        whether they came after the ``prompt``."""
        if self.beside:
            yield from ((start, end - start, 1, False) for start, end in self.rule.spans)
            return
        first, every = self.packed(prompt), self.packed_later(prompt, tokens)
        window, entered = self._entered(prompt)
        start, step = (0 if self.rule.tier[0] == "first" else self.head) + window.sink, window.step or 1
        size = first
        if self.window.rewritten:
            size = first = every
        elif self.rule.tier[0] == "last":  # the prompt's blocks, of a step each, leave before the later ones
            size = step
            first = max(0, first - (tokens - self._entered(tokens)[1] - prompt + entered))
        if whole := first // (size or 1):
            yield start, size, whole, False
        if first > whole * size:
            yield start, first - whole * size, 1, False
        if every > first:
            yield start + first, step, (every - first) // step, True

    def frozen(self, tokens: int) -> int:
        """About how many of a prompt's ``tokens`` no later step changes."""
        if not self.tail:
            return self.window.frozen(tokens)
        return min(tokens, self.head) + Window(recent=self.tail).packed(max(0, tokens - self.head))


@dataclass(frozen=True)
class Stack:
    """The rules that share the keys, or the values, of some layers, with their numbers: the first that fits a token
    stores it."""

    tensor: Tensor
    layers: tuple[int, ...]
    rules: tuple[tuple[int, Rule], ...]

    def assignments(self) -> Iterator[Assignment]:
        """What each rule stores; first or newest tokens in fp16 are windows of the rule that comes after them."""
        head, tail = (self._encoded(kind) for kind in ("first", "last"))
        sinks, recent = (self._full(kind) for kind in ("first", "last"))
        made = list[tuple[int, Rule]]()
        for number, rule in self.rules:
            kind = rule.tier[0]
            if not rule.quantizes(self.tensor) and kind != "spans":
                continue
            options: dict[str, int] = {}
            if sinks and (kind == "first" or (kind == "all" and head is None)):
                options["sink_tokens"] = sinks
            if recent and (kind == "last" or (kind == "all" and tail is None)):
                options["recent_tokens"] = recent
            try:
                stored = rule.with_options(**options)
            except (SpecError, ValidationError) as error:
                told = ", ".join(f"{name} = {value}" for name, value in options.items())
                said = first_line(error, Rule) if isinstance(error, ValidationError) else error
                raise SpecError(f"{self._named()}: fp16 there is {told} of {rule.method}, and {said}") from None
            made.append((number, stored))
        first = self._sinks(made) if head is None else head.tier[1]
        ends = [r.windows()[TENSORS.index(self.tensor)].step or 1 for _, r in made if r.tier[0] in ("last", "all")]
        newest = 0 if tail is None else tail.tier[1]
        for number, stored in made:
            yield Assignment(number, stored, self.tensor, self.layers, first, newest, lcm(*ends))

    def _sinks(self, made: list[tuple[int, Rule]]) -> int:
        """First tokens that are in fp16 apart from what rules encode beside them: those that the rule for all the
        others keeps, or where there is none, those that a tail may not take."""
        if (body := self._encoded("all", [rule for _, rule in made])) is None:
            return self._full("first") if self._encoded("last") else 0
        return 0 if len(made) == 1 else self._own_sinks(body)

    def _own_sinks(self, rule: Rule) -> int:
        return rule.windows()[TENSORS.index(self.tensor)].sink

    def _encoded(self, kind: str, made: Sequence[Rule] | None = None) -> Rule | None:
        rules = [rule for _, rule in self.rules] if made is None else made
        return next((rule for rule in rules if rule.tier[0] == kind and rule.quantizes(self.tensor)), None)

    def _full(self, kind: str) -> int:
        """First or newest tokens in fp16, told by a rule."""
        counts = (r.tier[1] for _, r in self.rules if r.tier[0] == kind and not r.quantizes(self.tensor))
        return max(counts, default=0)

    def check(self) -> None:
        """Raises SpecError where these rules cannot share a tensor."""
        kinds = [rule.tier[0] for _, rule in self.rules]
        if kinds == ["all"]:
            return
        if kinds != sorted(kinds, key=_ORDER.index):
            raise SpecError(f"{self._named()}: rules of spans come first, then first:n, last:n, and all; reorder them.")
        self._check_spans()
        for kind in ("first", "last"):
            own = [rule for _, rule in self.rules if rule.tier[0] == kind]
            self._check_ends([(rule.quantizes(self.tensor), rule.tier[1]) for rule in own], kind)
        self._check_sinks()
        self._check_left_out()
        made = list(self.assignments())  # refuses windows that a method cannot have
        apart = [a for a in made if a.rule.tier[0] != "all" and a.rule.quantizes(self.tensor)]
        if apart or any(a.beside for a in made):
            self._check_codecs(made)

    def _check_spans(self) -> None:
        """Raises SpecError where the spans of a rule lie within those of the rules before it."""
        taken: list[tuple[int, int]] = []
        for number, rule in self.rules:
            if rule.spans and all(_within(span, taken) for span in rule.spans):
                raise SpecError(
                    f"rule {number + 1} ({rule.named()}) can never be reached: the spans of rules before it hold all "
                    "its own; move it up or remove it."
                )
            taken.extend(rule.spans)

    def _check_ends(self, ends: list[tuple[bool, int]], kind: str) -> None:
        quantized = [whether for whether, _ in ends]
        if quantized not in ([], [False], [True], [False, True]) or (len(ends) == 2 and ends[0][1] >= ends[1][1]):
            raise SpecError(
                f"{self._named()}: {kind}:n may stand once in fp16 and, larger and after that, once quantized."
            )

    def _check_sinks(self) -> None:
        """Raises SpecError where a rule for all the others keeps first tokens that a rule before it holds some of."""
        head, body = self._encoded("first"), self._encoded("all")
        if head is not None and body is not None and (sinks := self._own_sinks(body)) > head.tier[1]:
            raise SpecError(
                f"{self._named()}: {body.method} keeps the first {sinks} tokens in fp16, of which first:{head.tier[1]} "
                f"holds some encoded; give first:{sinks} or more, or sink_tokens = {head.tier[1]} or less."
            )

    def _check_left_out(self) -> None:
        """Raises SpecError where some tokens would be read with biases and others without."""
        how = {rule.center == "slow" for _, rule in self.rules if rule.quantizes(self.tensor)}
        if self.tensor == "keys" and len(how) > 1:
            raise SpecError(
                f"{self._named()}: center = slow leaves biases out of all tokens of a layer; give it to all of these "
                "rules, or to none."
            )

    def _check_codecs(self, made: list[Assignment]) -> None:
        """Raises SpecError where a method cannot hold a part of the tokens."""
        spaces = {}
        for assigned in made:
            method, window, (kind, count) = assigned.method, assigned.window, assigned.rule.tier
            if not method.quantizes:
                continue
            spaces[method.key_space] = assigned.rule.named()
            said = f"{self._named()}: {method.name}"
            if window.prompt_only or window.rewritten:
                how = "stores the prompt once, as a whole" if window.prompt_only else "stores its tokens anew, as one"
                raise SpecError(f"{said} {how}: it cannot be split by tokens.")
            step = window.step or 1
            lengths = [count - window.sink] if kind == "first" else [b - a for a, b in assigned.rule.spans]
            if kind in ("first", "spans") and any(n % step or n <= 0 for n in lengths):
                raise SpecError(f"{said} stores {step} tokens at a time; give {kind} whole multiples of it.")
            if kind == "last" and count < window.recent + step:
                least = window.recent + step
                raise SpecError(f"{said} keeps up to {least - 1} newest tokens in fp16; give last:{least} or more.")
        if self.tensor == "keys" and len(spaces) > 1:
            raise SpecError(f"{self._named()}: {spaces['pre']} stores keys before RoPE, {spaces['post']} after it.")

    def _named(self) -> str:
        names = " and ".join(f"{number + 1} ({rule.named()})" for number, rule in self.rules)
        where = "" if self.layers in ((), (-1,)) or -1 in self.layers else f" of {layer_words(self.layers)}"
        return f"rules {names}, {self.tensor}{where}"


def first_stay(rules: Sequence[Rule]) -> bool:
    """Whether first tokens of keys, or of values, are kept in fp16 beside spans or an encoded tail."""
    return any(_first_stay([rule for rule in rules if rule.covers(t)], t) for t in TENSORS)


def _first_stay(rules: Sequence[Rule], tensor: Tensor) -> bool:
    stored = [rule for rule in rules if rule.quantizes(tensor)]
    if any(rule.tier[0] == "first" for rule in stored):
        return False
    first = any(rule.tier[0] == "first" for rule in rules) or any(w.sink for rule in stored for w in rule.windows())
    return first and (any(rule.spans for rule in rules) or any(rule.tier[0] == "last" for rule in stored))


def _within(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    """Whether every token of a span [start, end) is one of the others'."""
    reached = span[0]
    for start, end in sorted(others):
        if start <= reached:
            reached = max(reached, end)
    return reached >= span[1]


def stacks_of(rules: tuple[Rule, ...], layers: set[int], windowed: frozenset[int] = frozenset()) -> list[Stack]:
    """The layers of a model whose keys, or values, the same rules share; layers of no rule are in none."""
    found: dict[tuple[Tensor, tuple[int, ...]], list[int]] = {}
    fitting = list(places(rules, layers, windowed))
    for tensor in TENSORS:
        for layer in sorted(layers):
            numbers = tuple(number for number, of, taken in fitting if of == tensor and layer in taken)
            if numbers:
                found.setdefault((tensor, numbers), []).append(layer)
    return [
        Stack(tensor, tuple(held), tuple((number, rules[number]) for number in numbers))
        for (tensor, numbers), held in found.items()
    ]


def rules_for(rules: Sequence[Rule], shape: ModelShape) -> tuple[Rule, ...]:
    """Those of some rules that are for anything on a model of that shape, in their order."""
    rules = tuple(rules)
    taken = {number for number, *_ in places(rules, set(shape.keyed), frozenset(shape.windowed))}
    return tuple(rule for number, rule in enumerate(rules) if number in taken)


def places(
    rules: tuple[Rule, ...], layers: set[int], windowed: frozenset[int] = frozenset()
) -> Iterator[tuple[int, Tensor, set[int]]]:
    """A rule's number, a tensor, and the layers of those given whose tensor no rule before it takes whole. ``windowed``
    ones, which attend to a window of tokens, are taken by rules that say so alone."""
    free = {tensor: set(layers) for tensor in TENSORS}
    for number, rule in enumerate(rules):
        for tensor in filter(rule.covers, TENSORS):
            taken = free[tensor] if isinstance(rule.layers, str) else free[tensor].intersection(rule.layers)
            taken = taken if rule.sliding else taken - windowed
            if taken:
                yield number, tensor, taken
            if rule.tokens == "all":
                free[tensor] = free[tensor] - taken
