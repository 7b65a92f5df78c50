"""Queries that a method's kernels round, in packed layers: against attention by hand in float64."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from kvq_core.codecs.queries import QueryRounding, rounded_q8_0
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods import Method, ModelRef, Prompt, Window, make
from kvq_core.methods.per_token import PerToken
from kvq_core.models.scoring import Scoring
from kvq_core.packed.layer import PackedLayer, PackingPlan
from kvq_core.spec import Lane
from tests.core.engine.test_query_rounding import by_hand
from tests.support.tiny_models import prompt_ids, tiny

SCALING, PROMPT = 0.2, 40
KEPT = Window(step=None)


class Rounding(PerToken):
    """Groups of codes, read by a kernel that rounds queries."""

    name: ClassVar[str] = "rounding"

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        return rounded_q8_0


GROUPS = {"bits": 8, "group_size": 32, "residual_length": 4}


def tensors(dim: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(dim)
    queries = torch.randn(1, 4, tokens, dim, generator=g) * 2
    keys, values = (torch.randn(1, 2, tokens, dim, generator=g) for _ in "kv")
    return queries, keys, values


def filled(method: Method, dim: int, windows: tuple[Window, Window] | None = None) -> PackedLayer:
    layer = PackedLayer(PackingPlan(method, windows or method.windows()))
    layer.fill(*(x[:, :, :PROMPT] for x in tensors(dim, PROMPT + 8)))
    return layer


def as_stored(method: Method, x: Tensor, which: int) -> Tensor:
    """The prompt's keys or values as the cache holds them, by the method's own codec; its window in fp16."""
    fitted = method.fit(Prompt(x, x, None))
    codec, window = (fitted.key, fitted.value)[which], method.windows()[which]
    assert codec is not None
    end = window.packed(PROMPT)
    read = codec.decode(codec.encode(x[:, :, :end], 0))
    return torch.cat([read, x[:, :, end:PROMPT].half().float()], -2)


def entered(method: Method, x: Tensor) -> Tensor:
    """A new token's keys or values as the cache takes them: blocks of llama.cpp and its kin as they were computed."""
    return x if method.name in ("q8_0", "q6_0", "q4_0") else x.half().float()


def expected(asked: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, new: int) -> Tensor:
    """Attention of the last ``new`` tokens; ``asked``: queries for keys of the cache, and for the new tokens' own."""
    total, heads = keys.shape[-2], asked[0].shape[1]
    k, v = (x.double().repeat_interleave(heads // 2, 1) for x in (keys, values))
    scores = torch.cat([asked[0].double() @ k[..., :-new, :].mT, asked[1].double() @ k[..., -new:, :].mT], -1) * SCALING
    future = torch.ones(new, total, dtype=torch.bool).triu(total - new + 1)
    return (scores.masked_fill(future, float("-inf")).softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize(
    ("method", "dim"),
    [
        (make("q8_0", rotate=False), 64),
        (make("q8_0"), 96),  # not turned
        (make("q6_0"), 128),
        (Rounding(**GROUPS), 64),  # fused
    ],
    ids=["q8_0", "odd", "q6_0", "groups"],
)
def test_a_step_reads_by_rounded_queries(method: Method, dim: int, new: int) -> None:
    """A new token meets every key so; of several, the cache's alone."""
    layer, given = filled(method, dim), tensors(dim, PROMPT + 8)
    queries, keys, values = (x[:, :, PROMPT : PROMPT + new] for x in given)
    out = layer.attend(queries, keys, values, Scoring(SCALING))
    met = by_hand(queries)
    held = [as_stored(method, x, i) for i, x in enumerate(given[1:])]
    k, v = (torch.cat([x, entered(method, own)], -2) for x, own in zip(held, (keys, values), strict=True))
    found = expected((met, met if new == 1 else queries), k, v, new)
    torch.testing.assert_close(out.double(), found, rtol=0, atol=2e-5)
    assert (out.double() - expected((queries, queries), k, v, new)).abs().max() > 1e-4
    assert layer.tokens == PROMPT + new


@pytest.mark.parametrize("dim", [64, 128])
def test_rounding_happens_behind_the_rotation(dim: int) -> None:
    method = make("q4_0")
    layer, given = filled(method, dim), tensors(dim, PROMPT + 8)
    queries, keys, values = (x[:, :, PROMPT : PROMPT + 1] for x in given)
    signs = [[(-1) ** (i & j).bit_count() for j in range(dim)] for i in range(dim)]
    matrix = torch.tensor(signs, dtype=torch.float64) * dim**-0.5
    met = by_hand(queries.double() @ matrix) @ matrix
    held = [as_stored(method, x, i) for i, x in enumerate(given[1:])]
    k, v = (torch.cat([x, entered(method, own)], -2) for x, own in zip(held, (keys, values), strict=True))
    out = layer.attend(queries, keys, values, Scoring(SCALING)).double()
    torch.testing.assert_close(out, expected((met, met), k, v, 1), rtol=0, atol=2e-5)
    wrong = by_hand(queries)
    assert (out - expected((wrong, wrong), k, v, 1)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("method", "windows"),
    [(make("q8_0", quantize_query=False), None), (make("q8_0"), (KEPT, Window(recent=0, step=1)))],
    ids=["knob", "values alone"],
)
def test_queries_of_other_keys_stay(method: Method, windows: tuple[Window, Window] | None) -> None:
    layer, given = filled(method, 64, windows), tensors(64, PROMPT + 8)
    queries, keys, values = (x[:, :, PROMPT : PROMPT + 1] for x in given)
    held = [as_stored(method, x, i) for i, x in enumerate(given[1:])]
    if windows is not None:
        held[0], keys = given[1][:, :, :PROMPT].half().float(), keys.half().float()
    k, v = (torch.cat([x, entered(method, own)], -2) for x, own in zip(held, (keys, values), strict=True))
    out = layer.attend(queries, keys, values, Scoring(SCALING))
    torch.testing.assert_close(out.double(), expected((queries, queries), k, v, 1), rtol=0, atol=2e-5)


def test_half_precision_rounds_as_float32_does() -> None:
    """A model in bfloat16: queries are rounded from what it computed, and its answer comes back in its dtype."""
    layer, given = filled(make("q8_0"), 64), tensors(64, PROMPT + 8)
    half = [x[:, :, PROMPT : PROMPT + 1].bfloat16() for x in given]
    out = layer.attend(half[0], half[1], half[2], Scoring(SCALING))
    same = filled(make("q8_0"), 64).attend(half[0].float(), half[1].float(), half[2].float(), Scoring(SCALING))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, same.bfloat16(), rtol=0, atol=0)


def e4m3(x: np.ndarray) -> np.ndarray:
    """Three bits of mantissa, exponents from -6 on, halves to even, at most 448: by arithmetic in float64."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 1e-30))), -6)
    return np.clip(np.round(x / 2.0 ** (exponent - 3)) * 2.0 ** (exponent - 3), -448, 448)


@pytest.mark.parametrize("scale", ["tensor", "head"])
def test_fp8_rounds_queries_at_scale_1_whatever_the_scale_of_the_keys(scale: str) -> None:
    def by_arithmetic(queries: Tensor) -> Tensor:
        return torch.tensor(e4m3(queries.double().numpy()))

    model, ids = tiny("llama"), prompt_ids(30)
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    lane = Lane(method="fp8", knobs={"scale": scale}, layers=(0, 2))
    cache = LaneCache.of_prompt(lane, prefill.groups, model.rope(40))
    queries = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(1)) * 3
    for layer in (0, 2):
        found = cache.roundings[layer](queries).double()
        torch.testing.assert_close(found, by_arithmetic(queries), rtol=1e-6, atol=0)
    assert set(cache.roundings) == {0, 2}

    method = make("fp8", scale=scale)
    layer, given = filled(method, 64), tensors(64, PROMPT + 8)
    queries, keys, values = (x[:, :, PROMPT : PROMPT + 1] for x in given)
    met = by_arithmetic(queries[0])[None]
    held = [as_stored(method, x[:, :, :PROMPT], i) for i, x in enumerate(given[1:])]
    k, v = (torch.cat([x, entered(method, own)], -2) for x, own in zip(held, (keys, values), strict=True))
    out = layer.attend(queries, keys, values, Scoring(SCALING)).double()
    torch.testing.assert_close(out, expected((met, met), k, v, 1), rtol=0, atol=2e-5)
    assert (out - expected((queries, queries), k, v, 1)).abs().max() > 1e-4
