"""Tiers of tokens: the first ones, the newest ones and spans of the prompt, each stored as it alone is."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

import torch
from torch import Tensor

from kvq_core.codecs.blocks import Patch
from kvq_core.codecs.center import Center
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.fold import Fold
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.stream import Change, Stream
from kvq_core.codecs.window import Window

WHOLE = Window(step=None)


@dataclass(frozen=True)
class TierStoring:
    """How tokens of a tier are stored; without a codec in fp16."""

    window: Window = WHOLE
    codec: Codec | None = None
    center: Center | None = None
    rotation: Hadamard | None = None
    fold: Fold | None = None
    rule: int | None = None  # number of the rule that says so

    def stream(self, x: Tensor, first: int, window: Window, block: int | None = None) -> Stream:
        """Tokens x from position ``first`` on."""
        return Stream.of_prompt(x, window, self.codec, self.center, self.rotation, first, block, self.fold)


@dataclass(frozen=True)
class TierPlan:
    """``first``: a number of first tokens, stored apart from the rest for good; ``last``: as many newest ones or a few
    more, which leave for the ``body`` in groups; ``spans`` [start, end) of the prompt, kept beside all that."""

    body: TierStoring
    first: tuple[int, TierStoring] | None = None
    last: tuple[int, TierStoring] | None = None
    spans: tuple[tuple[tuple[int, int], TierStoring], ...] = ()


@dataclass
class Tiers:
    """[head | body | tail] over the layers a lane treats alike, and ``beside`` them copies of spans that are read in
    place of what those hold.

    A new token enters the head until that has ``limit`` tokens, then the tail, or the body where there is none. Once
    the tail holds ``newest`` tokens and a group that both can part with, its oldest group leaves: what was read of it
    is encoded into the body. Only the tail has a full-precision window then, the body one only without a tail. Shapes
    (layers, kv_heads, tokens, head_dim). The body stores the tokens of spans, too, and both copies are counted.
    """

    body: Stream
    head: Stream | None = None
    limit: int = 0
    tail: Stream | None = None
    newest: int = 0
    beside: tuple[Stream, ...] = ()
    plan: TierPlan | None = None

    @classmethod
    def of_prompt(cls, x: Tensor, plan: TierPlan) -> "Tiers":
        """Encode the prompt's x (float32)."""
        limit = plan.first[0] if plan.first else 0
        head = None
        if plan.first:
            head = plan.first[1].stream(x[..., :limit, :], 0, replace(plan.first[1].window, recent=0))
        rest = x[..., limit:, :]
        beside = tuple(storing.stream(x[..., a:b, :], a, _at_once(storing.window)) for (a, b), storing in plan.spans)
        if plan.last is None:
            body = plan.body.stream(rest, limit, replace(plan.body.window, sink=0))
            return cls(body, head, limit, beside=beside, plan=plan)
        newest, last = plan.last
        window = _at_once(plan.body.window)
        older = Window(recent=newest, step=lcm(window.step or 1, last.window.step or 1)).packed(rest.shape[-2])
        body = plan.body.stream(rest[..., :older, :], limit, window)
        tail = last.stream(rest[..., older:, :], limit + older, replace(last.window, sink=0), last.window.step)
        return cls(body, head, limit, tail, newest, beside, plan)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Head, body and tail: all tokens in their order."""
        return tuple(stream for stream in (self.head, self.body, self.tail) if stream is not None)

    def of_rule(self, rule: int) -> list[Stream]:
        """What one rule stores."""
        assert self.plan is not None
        ends = ((self.head, self.plan.first), (self.tail, self.plan.last))
        held = [(stream, end[1]) for stream, end in ends if stream is not None and end is not None]
        spans = [(stream, how) for stream, (_, how) in zip(self.beside, self.plan.spans, strict=True)]
        return [stream for stream, how in (*held, (self.body, self.plan.body), *spans) if how.rule == rule]

    @property
    def device(self) -> torch.device:
        return self.body.device

    @property
    def tokens(self) -> int:
        return sum(stream.tokens for stream in self.streams)

    @property
    def packed_tokens(self) -> int:
        """Tokens held encoded; those of a span in fp16 count where the rest of their tier does."""
        return sum(stream.packed_tokens for stream in self.streams)

    @property
    def packed_range(self) -> tuple[int, int]:
        """Positions from the first token that is held encoded to behind the last; (0, 0) where none is."""
        ranges = [stream.packed_range for stream in self.streams if stream.packed_tokens]
        return (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)

    @property
    def observes(self) -> bool:
        return False

    @property
    def enters(self) -> torch.dtype:
        """What new tokens are rounded to, see ``Stream.enters``; those of the head to what it says."""
        return (self.body if self.tail is None else self.tail).enters

    def observe(self, queries: Tensor, attention: Tensor) -> Patch | None:
        return None

    def append(self, x: Tensor) -> None:
        """Add new tokens x, rounded."""
        if self.head is not None and (room := self.limit - self.head.tokens):
            self.head.append(x[..., :room, :])
            x = x[..., room:, :]
        if x.shape[-2]:
            (self.body if self.tail is None else self.tail).append(x)

    def flush(self, prompt: bool = False) -> list[Change]:
        """Encode the tokens now due, and move what leaves the tail; what changed by it."""
        changes = [change for stream in self.streams for change in stream.flush(prompt)]
        if self.tail is not None:
            step = lcm(self.body.window.step or 1, self.tail.window.step or 1)
            leaving = Window(recent=self.newest, step=step).leaving(self.tail.tokens)
            if leaving:
                changes.append(self._entered(self.tail.give_up(leaving), prompt))
        return [(start, self._with_spans(values, start)) for start, values in changes]

    def enter(self, x: Tensor, prompt: bool) -> Change:
        """Add tokens x at once, as if one by one, see ``Stream.enter``."""
        first = self.tokens
        self.append(x)
        start = min([first, *(at for at, _ in self.flush(prompt))])
        return start, self.decode()[..., start:, :]

    def _entered(self, x: Tensor, prompt: bool) -> Change:
        """The body takes tokens from the tail."""
        if self.body.codec is not None:
            return self.body.encode(x, prompt)
        start = self.body.first + self.body.tokens
        self.body.append(x)
        return start, x.to(torch.float16).float()

    def _with_spans(self, values: Tensor, start: int) -> Tensor:
        """Values from position ``start`` on, those of spans as they are held beside."""
        end = start + values.shape[-2]
        for span in reversed(self.beside):  # of several that hold a token the first is read
            a, b = max(start, span.first), min(end, span.first + span.tokens)
            if a < b:
                values = values.clone()
                values[..., a - start : b - start, :] = span.decode()[..., a - span.first : b - span.first, :]
        return values

    def decoded(self) -> Iterator[Tensor]:
        """The cache as attention reads it, float32, piece by piece in token order."""
        start = 0
        for stream in self.streams:
            for values in stream.decoded():
                yield self._with_spans(values, start)
                start += values.shape[-2]

    def decode(self) -> Tensor:
        """All pieces together: (layers, kv_heads, tokens, head_dim)."""
        return torch.cat(list(self.decoded()), -2)

    def frozen(self, tokens: int) -> int:
        """Length of the prefix of a prompt of so many ``tokens`` that no later step changes."""
        if self.head is not None and tokens <= self.limit:
            return self.head.frozen(tokens)
        rest = tokens - self.limit
        if self.tail is None:
            return self.limit + self.body.frozen(rest)
        step = lcm(self.body.window.step or 1, self.tail.window.step or 1)
        return self.limit + Window(recent=self.newest, step=step).packed(rest)

    def fork(self) -> "Tiers":
        """An independent copy; blocks and spans are immutable and shared."""
        head, tail = (None if stream is None else stream.fork() for stream in (self.head, self.tail))
        return replace(self, body=self.body.fork(), head=head, tail=tail)

    def nbytes(self) -> dict[str, int]:
        """Bytes by part, summed from the tensors held; full precision kept beside is a part of its own."""
        parts: dict[str, int] = {}
        for stream in self.streams:
            for name, size in stream.nbytes().items():
                parts[name] = parts.get(name, 0) + size
        for stream in self.beside:
            for name, size in stream.nbytes().items():
                name = "spans" if name == "untouched" else name
                parts[name] = parts.get(name, 0) + size
        return parts

    @property
    def host_bytes(self) -> int:
        return sum(stream.host_bytes for stream in (*self.streams, *self.beside))

    def remarks(self) -> tuple[str, ...]:
        return tuple(remark for stream in self.streams for remark in stream.remarks())

    def usage(self) -> dict[str, Tensor]:
        """That of the body, which is most of it."""
        return self.body.usage()

    @property
    def codec(self) -> Codec | None:
        """That of the body."""
        return self.body.codec

    def bits(self) -> Tensor:
        """Stored bits of each element (layers or 1, kv_heads or 1, tokens, channel groups or 1), both copies of spans
        counted."""
        maps = [stream.bits() for stream in self.streams if stream.tokens]
        whole = _joined(maps)
        for span in self.beside:
            own = span.bits()
            alike = _joined([whole, own])
            whole, more = alike[..., : whole.shape[-2], :].clone(), alike[..., whole.shape[-2] :, :]
            whole[..., span.first : span.first + span.tokens, :] += more
        return whole


def _at_once(window: Window) -> Window:
    """A window that keeps nothing back but what no group is complete of; fp16 stays fp16."""
    return window if window.step is None else Window(step=window.step)


def _joined(maps: list[Tensor]) -> Tensor:
    """Maps of bits of consecutive tokens as one."""
    layers, heads = (max(m.shape[d] for m in maps) for d in (0, 1))
    groups = lcm(*(m.shape[3] for m in maps))
    wide = (m.repeat_interleave(groups // m.shape[3], 3).expand(layers, heads, -1, -1) for m in maps)
    return torch.cat(list(wide), -2)
