"""What one rule of a lane stores of some layers' keys or values."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from kvq_core.methods import Method, Window
from kvq_core.spec.rule import TENSORS, Rule, Tensor
from kvq_core.spec.transforms import Transforms


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
