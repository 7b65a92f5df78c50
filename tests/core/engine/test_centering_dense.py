"""Centred keys against the formula: what is read is codec(k - c) + c, c in float64 and turned by a loop of its own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.methods import Prompt
from kvq_core.models.rope import Rope
from kvq_core.spec import Lane
from tests.support.tiny_models import prompt_ids, tiny

TOKENS, PROMPT = 96, 57
HOW = ("mean", "bias", "mean_after_rope")
LANES: dict[str, dict[str, Any]] = {
    "per_token": {"method": "per_token", "knobs": {"bits": 3, "group_size": 16, "residual_length": 7}},
    "sinks": {"method": "per_token", "knobs": {"group_size": 16}, "sink_tokens": 4, "recent_tokens": 5},
    "kivi": {"method": "kivi", "knobs": {"bits": 2, "group_size": 8, "residual_length": 16, "sink_tokens": 3}},
    "per_channel": {"method": "per_channel", "knobs": {"bits": 3, "group_size": 8, "residual_length": 16}},
    "innerq": {"method": "innerq", "knobs": {"group_size": 16, "sink_tokens": 5, "recent_tokens": 9}},
    "folded": {"method": "innerq", "knobs": {"group_size": 16, "recent_tokens": 9, "normalize_keys": "folded"}},
    "squat": {"method": "squat", "knobs": {"group_size": 8, "residual_length": 16, "block_size": 8}},
    "squat pre": {"method": "squat", "knobs": {"group_size": 8, "residual_length": 16, "rope": "pre"}},
    "qaq": {"method": "qaq", "knobs": {"target_bits": 3.0}},
    "qaq once": {"method": "qaq", "knobs": {"target_bits": 3.0, "update": "once", "unit": "layer"}},
}


def whole() -> tuple[LayerGroup, Rope]:
    """Real keys of a model whose projections have a bias, more of them than the prompt has."""
    prefill = SharedPrefill(tiny("qwen2"), prompt_ids(TOKENS))
    list(prefill.run())
    return prefill.groups[0], tiny("qwen2").rope(TOKENS)


def first(group: LayerGroup, tokens: int) -> LayerGroup:
    """What a prompt of so many tokens gives."""
    parts = {name: getattr(group, name)[..., :tokens, :] for name in ("keys", "values", "queries")}
    return replace(group, **parts)


def turn(x: Tensor, rope: Rope, sign: int) -> Tensor:
    """RoPE (sign 1) or its inverse, position by position and pair by pair as complex numbers, in float64."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x.double()[..., :half], x.double()[..., half:])
    for t in range(x.shape[-2]):
        angle = torch.complex(rope.cos[t, :half].double(), sign * rope.sin[t, :half].double())
        pairs[..., t, :] = pairs[..., t, :] * angle
    return torch.cat([pairs.real, pairs.imag], -1)


def constants(how: str, group: LayerGroup, rope: Rope, prompt: int, pre: bool) -> Tensor:
    """What is subtracted at every position, in the space of the stored keys: (layers, kv_heads, tokens, head_dim)."""
    own = group.keys.double() if how == "mean_after_rope" else turn(group.keys, rope, -1)
    if how == "bias":
        assert group.key_bias is not None
        constant = group.key_bias.double()
    else:
        constant = own[..., :prompt, :].mean(-2).half().double()
    alike = constant[..., None, :].repeat(1, 1, group.keys.shape[-2], 1)
    if (how == "mean_after_rope") != pre:
        return alike
    return turn(alike, rope, -1 if pre else 1)


class Naive:
    """[sinks | packed | window] of one tensor, told by positions alone."""

    def __init__(self, lane: Lane, codec: Codec, keys: Tensor, constant: Tensor, prompt: int):
        self.window, self.codec, self.blocks = lane.windows()[0], codec, list[Block]()
        self.keys, self.constant = keys, constant  # float64; generated ones are rounded to fp16 as they enter
        self.keys[..., prompt:, :] = self.keys[..., prompt:, :].half().double()
        self.sink = min(prompt, self.window.sink)
        self.end = self.sink + self.window.packed(prompt)
        if self.end > self.sink:
            self.blocks.append(codec.encode_prompt(self.less(self.sink, self.end), self.sink))

    def less(self, start: int, end: int) -> Tensor:
        return (self.keys - self.constant)[..., start:end, :].float()

    def step(self, tokens: int, queries: Tensor) -> None:
        """One token has come; the cache holds ``tokens``."""
        self.sink = min(tokens, self.window.sink)
        self.end = max(self.end, self.sink)
        due = 0 if self.window.prompt_only else self.window.leaving(tokens - self.end)
        if due:
            self.codec.extend(self.blocks, self.less(self.end, self.end + due), self.end)
            self.end += due
        if self.codec.observes and self.blocks:
            attention = torch.full((*queries.shape[:-1], tokens), 1 / tokens)  # which keys' widths do not ask for
            self.codec.observe(self.blocks, queries, attention, self.sink)

    def read(self) -> Tensor:
        packed = [self.codec.decode(block).double() for block in self.blocks]
        out = self.keys.half().double()
        if packed:
            out[..., self.sink : self.end, :] = torch.cat(packed, -2) + self.constant[..., self.sink : self.end, :]
        return out


def compare(lane: Lane, how: str, prompt: int, tokens: int) -> LaneCache:
    """Hold a lane's cache to the naive one over a prompt and the tokens after it."""
    group, rope = whole()
    group = first(group, tokens)
    method, given = lane.build(), first(group, prompt)
    pre = method.key_space == "pre"
    keys = turn(group.keys, rope, -1) if pre else group.keys.double()
    constant = constants(how, group, rope, prompt, pre)
    told = (keys - constant)[..., :prompt, :].float()
    asked = given.queries if method.needs_queries else None
    fitted = method.fit(Prompt(told, given.values, asked, rotated=given.keys, scaling=given.scaling))
    assert fitted.key is not None
    naive = Naive(lane, fitted.key, keys, constant, prompt)
    cache = LaneCache.of_prompt(lane, [given], rope)
    (part,) = cache.of("key")
    for position in range(prompt, tokens):
        cache.append(part, group.keys[..., position : position + 1, :], position)
        cache.flush(part)
        queries = group.queries[..., position : position + 1, :]
        if part.stream.observes:
            part.stream.observe(queries, torch.full((*queries.shape[:-1], position + 1), 1 / (position + 1)))
        naive.step(position + 1, queries)
    read, expected = torch.cat([values for _, values in cache.pieces(part)], -2), naive.read()
    expected = turn(expected, rope, 1) if pre else expected
    assert part.stream.packed_tokens == naive.end - naive.sink
    # float32 and float64 round a few keys to different codes; SQuat carries such an error into the token's channels
    assert ((read - expected).abs() > 5e-3).double().mean() < 0.01
    return cache


@pytest.mark.long("combine", sample=12)
@pytest.mark.few(sample=3)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", LANES)
def test_what_is_read_is_the_formula(name: str, how: str) -> None:
    """Over a prompt and 39 generated tokens, of which some leave the window later."""
    compare(Lane(**LANES[name], center=how), how, PROMPT, TOKENS)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(HOW),
    st.integers(1, 60),
    st.integers(0, 20),
    st.integers(0, 6),
    st.integers(0, 12),
    st.sampled_from(["per_token", "squat pre"]),
)
def test_windows_of_any_size_keep_their_keys_as_they_are(
    how: str, prompt: int, new: int, sinks: int, recent: int, name: str
) -> None:
    options = {"sink_tokens": sinks} | ({"recent_tokens": recent} if name == "per_token" else {})
    knobs = {k: v for k, v in LANES[name]["knobs"].items() if k != "residual_length" or name != "per_token"}
    lane = Lane(**{**LANES[name], "knobs": knobs}, center=how, **options)  # type: ignore[arg-type]
    compare(lane, how, prompt, prompt + new)


@pytest.mark.parametrize("how", HOW)
def test_bits_of_the_elements_are_the_bytes_that_are_stored(how: str) -> None:
    lane = Lane(**LANES["sinks"], center=how)  # type: ignore[arg-type]
    cache = compare(lane, how, PROMPT, TOKENS)
    (part,) = cache.of("key")
    shape = tiny("qwen2").shape
    stored = sum(size for name, size in measure(cache, shape).bytes_by_part.items() if name.startswith("key_"))
    layers, heads, dim = shape.layers, shape.kv_heads, shape.head_dim
    bits = part.stream.bits().double().expand(layers, heads, TOKENS, -1).mean(-1).sum() * dim
    assert bits.item() == pytest.approx(8 * stored, rel=1e-6)
