"""Which rule of a lane stores what: the rules that share a layer's keys or values, and what each has of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from pydantic import ValidationError

from kvq_core.complaints import first_line
from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape
from kvq_core.spec.assignment import Assignment
from kvq_core.spec.layers import layer_words
from kvq_core.spec.rule import TENSORS, Rule, Tensor

_ORDER = ("spans", "first", "last", "all")


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
