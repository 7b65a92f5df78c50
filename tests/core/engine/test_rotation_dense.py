"""Rotated lanes against dense matrices in float64, token by token."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.hadamard import Hadamard, largest_block
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.stress import apply_stress
from kvq_core.methods import Fitted, Prompt
from kvq_core.models.rope import Rope
from kvq_core.spec import Lane, Stress
from tests.core.engine.test_centering_dense import LANES, PROMPT, TOKENS, constants, first, whole
from tests.support.tiny_models import prompt_ids, tiny

HOW = ("hadamard", "signed")
TURNED = {name: given for name, given in LANES.items() if name not in ("folded", "squat pre")}


def dense(lane: Lane, layers: int, heads: int, dim: int) -> Tensor:
    """What rows of every head are multiplied with, (layers, heads, dim, dim) float64. An entry follows from its
    definition: the parity of the bits that row and column share."""
    block = lane.rotate_block or max(n for n in (2, 4, 8, 16, 32, 64, 128) if dim % n == 0)
    out = torch.zeros(layers, heads, dim, dim, dtype=torch.float64)
    for i in range(dim):
        for j in range(dim):
            if i // block == j // block:
                out[..., i, j] = (-1) ** (i & j & (block - 1)).bit_count() / block**0.5
    if lane.rotate == "signed":
        signs = Hadamard.signed(2, torch.device("cpu"), range(layers), heads, dim).signs
        assert signs is not None
        out = out * signs.double().mT
    return out


class Naive:
    """[sinks | packed | window] of keys or values, told by positions alone: turned in float64 before the codec."""

    def __init__(self, window: Any, codec: Codec, x: Tensor, constant: Tensor, turn: Tensor, prompt: int):
        self.window, self.codec, self.blocks = window, codec, list[Block]()
        self.x, self.constant, self.turn = x, constant, turn
        self.x[..., prompt:, :] = self.x[..., prompt:, :].half().double()
        self.sink = min(prompt, window.sink)
        self.end = self.sink + window.packed(prompt)
        if self.end > self.sink:
            self.blocks.append(codec.encode_prompt(self.seen(self.sink, self.end), self.sink))

    def seen(self, start: int, end: int) -> Tensor:
        return ((self.x - self.constant) @ self.turn)[..., start:end, :].float()

    def step(self, tokens: int, queries: Tensor) -> None:
        self.sink = min(tokens, self.window.sink)
        self.end = max(self.end, self.sink)
        due = 0 if self.window.prompt_only else self.window.leaving(tokens - self.end)
        if due:
            self.codec.extend(self.blocks, self.seen(self.end, self.end + due), self.end)
            self.end += due
        if self.codec.observes and self.blocks:
            attention = torch.full((*queries.shape[:-1], tokens), 1 / tokens)
            self.codec.observe(self.blocks, queries, attention, self.sink)

    def read(self) -> Tensor:
        out = self.x.half().double()
        if self.blocks:
            packed = torch.cat([self.codec.decode(block).double() for block in self.blocks], -2) @ self.turn.mT
            at = slice(self.sink, self.end)
            out[..., at, :] = packed + self.constant[..., at, :]
        return out


def fitted_dense(lane: Lane, given: LayerGroup, constant: Tensor, turn: Tensor) -> Fitted:
    """The lane's method on turned tensors; what it asks of queries it asks in that basis."""
    method = lane.build()
    prompt = given.keys.shape[-2]
    groups = given.queries.shape[1] // turn.shape[1]
    queries = given.queries.double() @ turn.repeat_interleave(groups, 1)
    keys, values, true = (
        (x @ turn).float() for x in (given.keys - constant[..., :prompt, :], given.values.double(), given.keys.double())
    )
    asked = queries.float() if method.needs_queries else None
    return method.fit(Prompt(keys, values, asked, rotated=true, scaling=given.scaling))


def compare(lane: Lane, group: LayerGroup, rope: Rope, prompt: int, tokens: int) -> LaneCache:
    """Hold a lane's keys and values to the naive ones over a prompt and the tokens after it."""
    group = first(group, tokens)
    given = first(group, prompt)
    layers, heads, _, dim = group.keys.shape
    turn = dense(lane, layers, heads, dim)
    none = torch.zeros_like(group.keys).double()
    constant = none if lane.center == "none" else constants(lane.center, group, rope, prompt, False)
    fitted = fitted_dense(lane, given, constant, turn)
    assert fitted.key is not None and fitted.value is not None
    keys, values = lane.windows()
    naive = {
        "key": Naive(keys, fitted.key, group.keys.double(), constant, turn, prompt),
        "value": Naive(values, fitted.value, group.values.double(), none, turn, prompt),
    }
    cache = LaneCache.of_prompt(lane, [given], rope)
    for position in range(prompt, tokens):
        queries = group.queries[..., position : position + 1, :]
        for part in cache.parts:
            x = group.keys if part.kind == "key" else group.values
            cache.append(part, x[..., position : position + 1, :], position)
            cache.flush(part)
            if part.stream.observes:
                part.stream.observe(queries, torch.full((*queries.shape[:-1], position + 1), 1 / (position + 1)))
            naive[part.kind].step(position + 1, queries)
    for part in cache.parts:
        read = torch.cat([x for _, x in cache.pieces(part)], -2)
        # float32 and float64 round a few elements to different codes, and a turn mixes those into a whole block
        wrong = ((read - naive[part.kind].read()).abs() > 5e-3).double().mean()
        assert wrong < 0.03, (part.kind, wrong)
    return cache


@pytest.mark.long("combine", sample=12)
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("center", ["none", "mean"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", TURNED)
def test_what_is_read_is_the_formula(name: str, how: str, center: str) -> None:
    """Over a prompt and 39 generated tokens, of which some leave the window later."""
    compare(Lane(**TURNED[name], center=center, rotate=how), *whole(), PROMPT, TOKENS)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.sampled_from([8, 16, 32, 64, 80, 96, 128]), st.sampled_from(HOW), st.integers(1, 7), st.integers(0, 2**31))
def test_the_turn_is_orthogonal_and_its_own_way_back(dim: int, how: str, log: int, seed: int) -> None:
    block = min(1 << log, largest_block(dim))
    lane = Lane(method="per_token", rotate=how, rotate_block=block)  # type: ignore[arg-type]
    cpu = torch.device("cpu")
    turn = Hadamard.of(block, cpu) if how == "hadamard" else Hadamard.signed(block, cpu, range(2), 3, dim)
    x = torch.randn(2, 3, 5, dim, generator=torch.Generator().manual_seed(seed))
    matrix = dense(lane, 2, 3, dim)
    torch.testing.assert_close(turn.turned(x).double(), x.double() @ matrix, rtol=0, atol=1e-5)
    torch.testing.assert_close(turn.back(turn.turned(x)), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(dim).double().expand_as(matrix), rtol=0, atol=1e-12)
    queries = torch.randn(2, 6, 4, dim)  # two query heads a KV head
    scores = turn.turned(queries).unflatten(1, (3, 2)) @ turn.turned(x)[:, :, None].mT
    torch.testing.assert_close(scores, queries.unflatten(1, (3, 2)) @ x[:, :, None].mT, rtol=0, atol=1e-4)


def heads_of(dim: int) -> tuple[LayerGroup, Rope]:
    """Random keys, values and queries of heads of that size."""
    group, rope = whole()
    generator = torch.Generator().manual_seed(dim)
    keys, values = (torch.randn(3, 2, 40, dim, generator=generator) for _ in "kv")
    angles = torch.outer(torch.arange(40.0), 100.0 ** -torch.linspace(0, 1, dim // 2)).repeat(1, 2)
    return replace(
        group, keys=keys, values=values, queries=torch.randn(3, 4, 40, dim, generator=generator), key_bias=None
    ), Rope.of(angles.cos(), angles.sin(), dim)


@pytest.mark.parametrize(("dim", "block"), [(80, 16), (96, 32)])
@pytest.mark.parametrize("how", HOW)
def test_heads_of_any_even_size_turn_in_the_largest_block_that_divides_them(dim: int, block: int, how: str) -> None:
    lane = Lane(method="per_token", knobs={"group_size": 16, "residual_length": 4}, rotate=how)  # type: ignore[arg-type]
    cache = compare(lane, *heads_of(dim), 30, 40)
    assert f"rotated in blocks of {block} channels" in cache.fit_notes[0]
    assert ("signs of seed" in cache.fit_notes[0]) == (how == "signed")


def test_stressed_keys_are_turned_as_they_are() -> None:
    model = tiny("qwen2")
    prefill = SharedPrefill(model, prompt_ids(TOKENS))
    list(prefill.run())
    apply_stress(model, prefill, Stress(key_outlier_scale=8))
    lane = Lane(**TURNED["per_token"], center="mean", rotate="signed")
    compare(lane, prefill.groups[0], model.rope(TOKENS), PROMPT, TOKENS)
