"""One lane: the rules by which a cache is stored, under one label."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import (
    CodebookNeed,
    Home,
    KeySelection,
    Method,
    ModelRef,
    ModelShape,
    Window,
)
from kvq_core.spec.assignment import Assignment
from kvq_core.spec.options import LABEL_CHARS, LaneOptions
from kvq_core.spec.plan import first_stay, places, stacks_of
from kvq_core.spec.prefill import Chunks
from kvq_core.spec.rule import TENSORS, Rule, Storing

MAX_RULES = 256


class Lane(Storing, LaneOptions):
    """One cache under one label: a method with its knobs and where it applies, or several rules that each say that.

    The first rule that fits a layer's keys or values stores them, and what none fits is fp16. A lane given by one rule
    for all tokens is the short form without ``rules``, in every respect.
    """

    rules: tuple[Rule, ...] | None = Field(
        None,
        max_length=MAX_RULES,
        description="Rules, in place of all the fields above: of each layer's keys and values the first that fits.",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        given = [
            name
            for name, field in Storing.model_fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        ]
        if self.rules is None:
            if self.method is None:
                raise SpecError("method is missing; name a method, or give rules.")
            object.__setattr__(self, "knobs", self.every_rule[0].knobs)
            return self._check()
        if given:
            value = excerpt(getattr(self, given[0]))
            raise SpecError(
                f"rules and {given[0]} = {value} are both given; put {given[0]} into a rule, or leave rules out."
            )
        if not self.rules:
            raise SpecError("rules = [] stores nothing; give at least one rule, or a method.")
        if len(self.rules) == 1 and self.rules[0].tokens == "all":
            for name in Storing.model_fields:
                object.__setattr__(self, name, getattr(self.rules[0], name))
            object.__setattr__(self, "rules", None)
            return self._check()
        self._check_rules()
        return self._check()

    def _check(self) -> Self:
        """Raises SpecError where the prompt cannot enter its cache, or be read, as asked, on any model."""
        for said, rule in self._said():
            if self.select is not None and rule.build().chooses:
                raise SpecError(
                    f"select by {self.select.by}: {said}{rule.method} chooses the keys that are read itself; give one "
                    "of the two."
                )
        if self.chunks is not None:
            for choice in (self.select, *(rule.build().selection for _, rule in self._said())):
                if choice is not None and (reason := choice.not_chunked(self.chunks.own_chunk)):
                    raise SpecError(f"prefill: {reason}.")
            for said, rule in self._said():
                if reason := rule.not_chunked(self.chunks.own_chunk) or rule.tier_not_chunked(self.chunks.own_chunk):
                    raise SpecError(f"prefill: {said}{reason}.")
        return self

    def _check_rules(self) -> None:
        """Raises SpecError for a rule that has no effect on any model."""
        for number, rule in enumerate(self.rules or (), 1):
            if rule.build().quantizes and not any(rule.quantizes(tensor) for tensor in TENSORS):
                raise SpecError(
                    f"rule {number} ({rule.named()}) quantizes nothing: the method leaves {rule.tensors} fp16."
                )
        named = {layer for rule in self.rules or () if not isinstance(rule.layers, str) for layer in rule.layers}
        taken = {number for number, *_ in places(self.every_rule, {*named, -1})}  # -1: all that no rule names
        if reason := self._unreached(taken):
            raise SpecError(f"{reason}.")
        for stack in stacks_of(self.every_rule, {*named, -1}):
            stack.check()

    def _unreached(self, taken: set[int]) -> str | None:
        for number, rule in enumerate(self.every_rule):
            if number not in taken:
                return (
                    f"rule {number + 1} ({rule.named()}) can never be reached: the rules before it take all it is for; "
                    "move it up or remove it"
                )
        return None

    @property
    def chunks(self) -> Chunks | None:
        """The chunks in which the prompt enters the cache; None where it is read in full precision first.

        Raises SpecError where it is to be read as deployed, and the rules' methods come from different engines.
        """
        if self.prefill == "full":
            return None
        if isinstance(self.prefill, Chunks):
            return self.prefill
        built = ((rule.build(), rule) for rule in self.every_rule)
        homes = {method.own_home: rule for method, rule in built if method.quantizes and not method.anywhere}
        if len(homes) > 1:
            (one, a), (other, b) = list(homes.items())[:2]
            raise SpecError(
                f"prefill = deployed: {a.named()} is read by {_engine(one)} and {b.named()} by {_engine(other)}; say "
                "how the prompt is read, such as prefill = full or 512."
            )
        home = next(iter(homes), None)
        return None if home is None else Chunks(chunk=home.chunk, own_chunk=home.own_chunk)

    @property
    def newest_kept(self) -> int:
        """At most, how many of the newest tokens it keeps unquantized, of keys or of values."""
        quantized = ((rule, at) for rule in self.every_rule for at, name in enumerate(TENSORS) if rule.quantizes(name))
        windows = (rule.windows()[at] for rule, at in quantized)
        return max((w.recent + (w.step or 1) - 1 for w in windows), default=0)

    @property
    def every_rule(self) -> tuple[Rule, ...]:
        """The rules, of a lane in its short form the one it is."""
        if self.rules is not None:
            return self.rules
        return (Rule(**{name: getattr(self, name) for name in Storing.model_fields}),)

    @property
    def rule(self) -> Rule:
        """The rule of a lane that has one. Raises SpecError where it has several."""
        first, *others = self.every_rule
        if others:
            raise SpecError(f"{self.label or self.title} has {1 + len(others)} rules; this is for lanes of one.")
        return first

    def build(self) -> Method:
        """``Rule.build`` of the one rule. Raises SpecError where there are several."""
        return self.rule.build()

    def windows(self) -> tuple[Window, Window]:
        """``Rule.windows`` of the one rule. Raises SpecError where there are several."""
        return self.rule.windows()

    def plan(self, shape: ModelShape) -> tuple[Assignment, ...]:
        """Which rule quantizes what on a model of that shape, in the rules' order; what is in none stays fp16."""
        return self.plan_of(shape.keyed, shape.windowed, shape.stateful)

    def plan_of(
        self, layers: Iterable[int], windowed: Iterable[int] = (), stateful: bool = False
    ) -> tuple[Assignment, ...]:
        """The plan for the layers of a model that keep keys, given as their numbers, and which of them attend to a
        window; ``stateful``: layers keep states, too. What engines keep in fp16 at both ends, they keep of models all
        of whose layers keep keys, and none a state."""
        every = set(layers)
        stacks = stacks_of(self.every_rule, every, frozenset(windowed))
        made = (assigned for stack in stacks for assigned in stack.assignments())
        whole = every == set(range(len(every))) and not stateful
        left = (
            assigned.without(assigned.method.kept_layers(len(every)) if whole else frozenset()) for assigned in made
        )
        return tuple(sorted(filter(None, left), key=lambda a: (a.number, TENSORS.index(a.tensor), a.layers)))

    def selections(
        self, layers: Iterable[int], windowed: Iterable[int] = ()
    ) -> list[tuple[KeySelection, tuple[int, ...]]]:
        """What chooses the keys that are read, beside what stores them, each with its layers among those given: those
        that are ``windowed`` read their window."""
        every = set(layers) - set(windowed)
        if self.select is not None:
            return [(self.select, tuple(sorted(every)))]
        found: dict[KeySelection, set[int]] = {}
        for number, tensor, taken in places(self.every_rule, every):
            own = self.every_rule[number].build().selection
            if own is not None and tensor == "keys":
                found.setdefault(own, set()).update(taken)
        return [(own, tuple(sorted(taken))) for own, taken in found.items()]

    @property
    def quantizes(self) -> bool:
        """Whether any of its methods quantizes."""
        return any(rule.build().quantizes for rule in self.every_rule)

    @property
    def _plain(self) -> bool:
        """Whether its method says what it stores: tensors and layers are told beside it, tokens are not."""
        return len(self.every_rule) == 1 and self.every_rule[0].tokens == "all"

    @property
    def title(self) -> str:
        """The method's title, or the rules in a few words: ``K per_token 8, V kivi 2; layers 0-3 fp16``; and what
        chooses the keys that are read."""
        rules = self.every_rule
        whole, some = ([r.named() for r in rules if isinstance(r.layers, str) is w] for w in (True, False))
        each = "; ".join(filter(None, [", ".join(whole), *some]))
        stored = rules[0].build().lane_title if self._plain else each
        return stored if self.select is None else f"{stored} + {self.select.by}"

    @property
    def default_label(self) -> str:
        """What the lane is called where no label is given."""
        return self.title if len(self.title) <= LABEL_CHARS - 5 else f"{self.title[: LABEL_CHARS - 6]}…"

    @property
    def summary(self) -> str:
        """The method's settings in a few words, of several rules each one's (fp16 has none), and its selection's."""
        rules = [(rule, rule.build()) for rule in self.every_rule]
        each = (f"{rule.named()}{f': {own.summary()}' * (own.quantizes or own.chooses)}" for rule, own in rules)
        stored = rules[0][1].summary() if self._plain else "; ".join(each)
        return stored if self.select is None else f"{stored} · reads {self.select.summary()}"

    def data_hash(self, model: ModelRef) -> str | list[str | None] | None:
        """``Method.data_hash`` of its method, of several rules a list; None where no rule has such data. Rules whose
        spans overlap are told from what they were while the last of them was read, and first tokens in fp16 beside a
        tail or spans from when they were not."""
        hashes = [rule.build().data_hash(model) for rule in self.every_rule]
        spans = sorted(span for rule in self.every_rule for span in rule.spans)
        if any(start < end for (_, end), (start, _) in pairwise(spans)):
            hashes.append("first of spans")
        if first_stay(self.every_rule):
            hashes.append("first in fp16")
        return hashes[0] if len(hashes) == 1 else hashes if any(hashes) else None

    def lacks(self, model: ModelRef) -> tuple[CodebookNeed, ...]:
        """Learned data its methods need on a model and do not find, each once."""
        return tuple(dict.fromkeys(need for rule in self.every_rule for need in rule.build().lacks(model)))

    def usage_bytes(self, shape: ModelShape, tokens: int) -> int:
        """At most, bytes of the record's arrays that tell how the lane stores."""
        return sum({rule.build(): rule.build().usage_bytes(shape, tokens) for rule in self.every_rule}.values())

    def out_of_place(self, shape: ModelShape) -> str | None:
        """Why its rules do not belong to a model of this shape: a layer that is not there, a rule that fits nothing."""
        for said, rule in self._said():
            if missing := rule.missing_layer(shape):
                return said + missing
        if len(self.every_rule) == 1:  # one that quantizes nothing fits a model of windows alone
            return None
        reached = places(self.every_rule, set(shape.keyed), frozenset(shape.windowed))
        return self._unreached({number for number, *_ in reached})

    def why_not(self, shape: ModelShape) -> str | None:
        """Why this lane cannot run on a model of this shape; None when it can."""
        reasons = (said + reason for said, rule in self._said() if (reason := rule.why_not(shape)))
        return self.out_of_place(shape) or next(reasons, None)

    def _said(self) -> Iterator[tuple[str, Rule]]:
        """Each rule with what names it in a message about the lane."""
        rules = self.every_rule
        for number, rule in enumerate(rules, 1):
            yield f"rule {number} ({rule.named()}): " if len(rules) > 1 else "", rule


def _engine(home: Home | None) -> str:
    return "no engine" if home is None else f"{home.engine} (its own chunk {home.own_chunk})"
