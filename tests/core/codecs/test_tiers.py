"""Tiers of tokens against a simulation that knows positions alone: who holds a token, and what is read of it."""

from dataclasses import dataclass, replace
from math import lcm

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.center import Center
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.stream import Stream
from kvq_core.codecs.tiers import TierPlan, Tiers, TierStoring
from kvq_core.codecs.window import Window

LAYERS, HEADS, DIM = 2, 2, 8
FP16 = TierStoring()


@dataclass(frozen=True)
class Rounded(Codec):
    """Multiples of ``grid``, of ``group`` tokens together of grid times the largest power of two below their largest
    element, so that what is read tells which tokens were encoded together."""

    grid: float
    group: int = 1

    def encode(self, x: Tensor, start: int) -> Block:
        assert x.shape[-2] % self.group == 0, "groups are whole"
        steps = self._steps(x)
        return Block(x.shape[-2], {"codes": (x / steps).round().to(torch.int16), "scales": steps.half()})

    def _steps(self, x: Tensor) -> Tensor:
        largest = x.unflatten(-2, (-1, self.group)).abs().amax((-1, -2), keepdim=True).clamp_min(2.0**-8)
        return (self.grid * 2 ** largest.log2().floor()).expand(-1, -1, -1, self.group, 1).flatten(2, 3)

    def decode(self, block: Block) -> Tensor:
        return block.tensors["codes"].float() * block.tensors["scales"].float()

    def bits(self, block: Block) -> Tensor:
        return torch.tensor(16.0 + 16 / DIM).view(1, 1, 1, 1)


def read_back(storing: TierStoring, x: Tensor, start: int) -> Tensor:
    """What is read of tokens x that a tier encodes together, in float64."""
    if storing.codec is None:
        return x.half().double()
    center = 0.0 if storing.center is None else storing.center.at(start, x.shape[-2]).double()
    turn = torch.eye(x.shape[-1]).double() if storing.rotation is None else storing.rotation.matrix.double()
    inner = ((x - center) @ turn).float()
    return storing.codec.decode(storing.codec.encode(inner, start)).double() @ turn.T + center


class Simulation:
    """Positions: [0, limit) head, [limit, left) body, from ``left`` on the tail or the body's window."""

    def __init__(self, x: Tensor, plan: TierPlan, prompt: int):
        self.raw = self.x = x.double()
        self.plan = plan
        self.read = self.x.half().double()
        self.limit = plan.first[0] if plan.first else 0
        self.tail = plan.last[1] if plan.last else plan.body
        self.newest = plan.last[0] if plan.last else 0
        self.step = lcm(self._step(plan.body), self._step(self.tail))
        self.head_done, self.left = 0, self.limit
        if plan.last:
            while prompt - self.left >= self.newest + self.step:
                self._encode(plan.body, self.x, self.left, self.left + self.step)
                self.left += self.step
        self.coded = self.left
        self.settle(prompt)
        self.x = x.half().double()  # what waits in a window is fp16

    @staticmethod
    def _step(storing: TierStoring) -> int:
        return storing.window.step or 1

    def _encode(self, storing: TierStoring, source: Tensor, start: int, end: int) -> None:
        for a in range(start, end, self._step(storing)):
            b = a + self._step(storing)
            self.read[..., a:b, :] = read_back(storing, source[..., a:b, :], a)

    def settle(self, tokens: int) -> None:
        if self.plan.first:
            window = self.plan.first[1].window
            begin, step = max(self.head_done, window.sink), self._step(self.plan.first[1])
            while begin + step <= min(tokens, self.limit):
                self._encode(self.plan.first[1], self.x, begin, begin + step)
                begin = self.head_done = begin + step
        step = self._step(self.tail)
        while self.tail.codec is not None and tokens - self.coded >= self.tail.window.recent + step:
            self._encode(self.tail, self.x, self.coded, self.coded + step)
            self.coded += step
        while self.plan.last and tokens - self.left >= self.newest + self.step:
            self._encode(self.plan.body, self.read.clone(), self.left, self.left + self.step)
            self.left += self.step

    def seen(self, tokens: int) -> Tensor:
        out = self.read.clone()
        for (a, b), storing in reversed(self.plan.spans):
            for start in range(a, b, self._step(storing)):
                end = start + self._step(storing)
                out[..., start:end, :] = read_back(storing, self.raw[..., start:end, :], start)
        return out[..., :tokens, :]


def tensor(tokens: int, seed: int = 0) -> Tensor:
    return torch.randn(LAYERS, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def compare(plan: TierPlan, prompt: int, tokens: int, seed: int = 0) -> Tiers:
    x = tensor(tokens, seed)
    tiers, simulated = Tiers.of_prompt(x[..., :prompt, :], plan), Simulation(x, plan, prompt)
    working = tiers.decode()
    frozen = working[..., : tiers.frozen(prompt), :].clone()
    for t in range(prompt, tokens + 1):
        torch.testing.assert_close(tiers.decode().double(), simulated.seen(t), rtol=0, atol=1e-5)
        torch.testing.assert_close(working, tiers.decode(), rtol=0, atol=0)  # what changed is all that changed
        assert tiers.tokens == t and tiers.bits().shape[-2] == t
        if t < tokens:
            tiers.append(x[..., t : t + 1, :])
            working = torch.cat([working, x[..., t : t + 1, :].half().float()], -2)
            for start, values in tiers.flush():
                working[..., start : start + values.shape[-2], :] = values
            simulated.settle(t + 1)
    assert torch.equal(working[..., : frozen.shape[-2], :], frozen)
    stored = tiers.bits().double().expand(LAYERS, HEADS, -1, -1).mean(-1).sum() * DIM
    assert stored.item() == pytest.approx(8 * sum(tiers.nbytes().values()), rel=1e-6)
    return tiers


FINE, COARSE = (TierStoring(Window(step=1), Rounded(grid)) for grid in (2.0**-7, 2.0**-2))
GROUPS = TierStoring(Window(step=4), Rounded(2.0**-3, group=4))
PAIRS = TierStoring(Window(step=2), Rounded(2.0**-5, group=2))
SOME = st.sampled_from([FINE, COARSE, GROUPS, PAIRS])


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(1, 50), st.integers(0, 40), st.integers(0, 2**31))
def test_every_token_is_where_its_tier_says(data: st.DataObject, prompt: int, new: int, seed: int) -> None:
    body, head, tail = data.draw(st.sampled_from([FINE, COARSE, GROUPS, PAIRS, FP16])), data.draw(SOME), data.draw(SOME)
    first = data.draw(st.none() | st.integers(1, 5).map(lambda n: (4 * n, head)))
    last = data.draw(st.none() | st.integers(2, 20).map(lambda n: (n, tail)))
    if last is not None:
        recent = data.draw(st.integers(0, max(0, last[0] - (tail.window.step or 1))))
        last = last[0], replace(tail, window=replace(tail.window, recent=recent))
    spans = data.draw(st.lists(st.integers(0, max(0, prompt // 4 - 1)), unique=True, max_size=2))
    beside = data.draw(SOME | st.just(FP16))
    plan = TierPlan(body, first, last, tuple(((4 * s, 4 * s + 4), beside) for s in spans if 4 * s + 4 <= prompt))
    if last is not None or first is not None or plan.spans:
        compare(plan, prompt, prompt + new, seed)


def test_what_leaves_a_tail_is_encoded_from_what_the_tail_held() -> None:
    """Twice rounded: the body's codes of a token that left are those of what was read of it, not of the token."""
    plan = TierPlan(COARSE, last=(6, FINE))
    tiers = compare(plan, 10, 40)
    assert tiers.tail is not None and tiers.tail.tokens == 6 and tiers.body.tokens == 34
    x = tensor(40)[..., 20:21, :]
    twice = read_back(COARSE, read_back(FINE, x.half().double(), 20), 20)
    torch.testing.assert_close(tiers.decode()[..., 20:21, :].double(), twice, rtol=0, atol=0)


def group(bits: int, size: int, axis: str, window: Window) -> TierStoring:
    return TierStoring(window, GroupCodec(bits, size, axis))  # type: ignore[arg-type]


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_tiers_have_a_constant_and_a_rotation_each(center: bool, turned: bool) -> None:
    constant = torch.randint(-8, 9, (LAYERS, HEADS, 1, DIM)) / 8  # exact in every sum: no code falls on another side

    def at(start: int, tokens: int) -> Tensor:
        """Another constant at every position, as one before RoPE is."""
        return constant * (1 + torch.arange(start, start + tokens, dtype=torch.float32)[:, None] / 64)

    four = Hadamard.of(4, torch.device("cpu")).matrix
    turn = Hadamard(torch.block_diag(four, four)) if turned else None  # of a whole head, as the simulation reads it
    own = Center(at, None) if center else None
    body, tail, head = (replace(storing, center=own, rotation=turn) for storing in (GROUPS, FINE, PAIRS))
    compare(TierPlan(body, (4, head), (8, tail), (((12, 16), body),)), 30, 60)


def test_a_tail_of_a_real_codec_over_another() -> None:
    """8 bits per token over KIVI's keys: 4 tokens a group leave together."""
    body, tail = group(2, 4, "tokens", Window(step=4)), group(8, 8, "channels", Window(recent=3, step=1))
    tiers = compare(TierPlan(body, last=(9, tail)), 25, 50)
    assert tiers.tail is not None and 9 <= tiers.tail.tokens <= 12 and tiers.tail.recent_tokens == 3
    bits = tiers.bits()[0, 0, :, 0]
    assert bits[0] < bits[-4] < 16 == bits[-1]


def test_a_tail_and_a_head_in_fp16_are_windows() -> None:
    """``last:n`` in fp16 is a window of n, ``first:n`` sinks of n: what is read and stored is the same."""
    x = tensor(60)
    codec = GroupCodec(3, 4, "channels")
    plain = Stream.of_prompt(x[..., :40, :], Window(sink=5, recent=7, step=1), codec)
    tiers = Tiers.of_prompt(x[..., :40, :], TierPlan(TierStoring(Window(recent=7, step=1), codec), first=(5, FP16)))
    for t in range(40, 60):
        for store in (plain, tiers):
            store.append(x[..., t : t + 1, :])
            store.flush()
        torch.testing.assert_close(tiers.decode(), plain.decode(), rtol=0, atol=0)
        assert sum(tiers.nbytes().values()) == sum(plain.nbytes().values())
        torch.testing.assert_close(tiers.bits(), plain.bits())


def test_a_span_is_kept_beside_what_the_body_stores() -> None:
    plan = TierPlan(COARSE, spans=(((8, 16), FP16), ((20, 24), FINE)))
    tiers = compare(plan, 30, 45)
    assert tiers.nbytes()["spans"] == 2 * LAYERS * HEADS * 8 * DIM
    alone = Tiers.of_prompt(tensor(45)[..., :30, :], TierPlan(COARSE))
    assert tiers.bits()[0, 0, 10].mean() - alone.bits()[0, 0, 10].mean() == pytest.approx(16)


def test_where_spans_overlap_the_first_is_read() -> None:
    plan = TierPlan(COARSE, spans=(((8, 16), FP16), ((12, 20), FINE)))
    compare(plan, 24, 30)
    x = tensor(24)
    read = Tiers.of_prompt(x, plan).decode()
    assert torch.equal(read[..., 8:16, :], x[..., 8:16, :].half().float())
    assert not torch.equal(read[..., 16:20, :], x[..., 16:20, :].half().float())


def test_a_fork_goes_its_own_way() -> None:
    x = tensor(50)
    tiers = Tiers.of_prompt(x[..., :30, :], TierPlan(COARSE, (4, PAIRS), (8, FINE), (((12, 14), FP16),)))
    fork, before = tiers.fork(), tiers.decode()
    for t in range(30, 50):
        fork.append(x[..., t : t + 1, :])
        fork.flush()
    assert torch.equal(tiers.decode(), before) and (tiers.tokens, fork.tokens) == (30, 50)


def test_tokens_that_come_at_once_leave_a_tail_in_its_groups() -> None:
    x = tensor(60)
    plan = TierPlan(GROUPS, last=(8, PAIRS))
    one, many = (Tiers.of_prompt(x[..., :20, :], plan) for _ in "ab")
    for t in range(20, 60):
        one.append(x[..., t : t + 1, :])
        one.flush()
    many.append(x[..., 20:60, :])
    many.flush()
    torch.testing.assert_close(many.decode(), one.decode(), rtol=0, atol=0)
    assert many.nbytes() == one.nbytes()
