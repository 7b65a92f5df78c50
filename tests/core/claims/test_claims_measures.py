"""Measurements of single claims against direct float64 computations, and the texts that are made for them."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvq_core.claims.criteria import MEASURES
from kvq_core.claims.decoding import numbers_of, slope
from kvq_core.claims.distributions import decay, error_ratio
from kvq_core.claims.lanes import ClaimLane, read_back
from kvq_core.claims.measures import Context
from kvq_core.claims.sample import capture
from kvq_core.claims.structure import window_attention
from kvq_core.claims.texts import Text, key_values, token_ids, word_problems
from kvq_core.errors import MethodError
from tests.support.tiny_models import prompt_ids, tiny

PROMPT, TOKENS = 128, 176


@pytest.fixture(scope="module")
def sample():
    return capture(tiny("llama"), "tiny", prompt_ids(TOKENS), PROMPT)


@pytest.fixture(scope="module")
def other():
    return capture(tiny("llama"), "other", prompt_ids(TOKENS, seed=9), PROMPT)


def measured(sample, kind, **data):
    measure = MEASURES[kind].model_validate(data)
    found = measure.on_text(Context(sample.model), sample)
    assert tuple(found) == measure.names or set(found) == set(measure.names)
    return found


# --- lanes ----------------------------------------------------------------------------------------------------------


def test_means_are_those_of_their_lanes(sample):
    lanes = {f"b{bits}": {"method": "kivi", "knobs": {"bits": bits}} for bits in (1, 2, 4)}
    found = measured(sample, "lanes", metrics=["key_error"], lanes=lanes, means={"low": ["b1", "b2"]})
    assert found["low.key_error"] == pytest.approx((found["b1.key_error"] + found["b2.key_error"]) / 2)
    with pytest.raises(ValueError, match="unknown lanes b3; known: b1, b2, b4"):
        MEASURES["lanes"].model_validate({"metrics": ["kld"], "lanes": lanes, "means": {"x": ["b3"]}})


def test_a_subspace_of_another_text_is_that_of_its_prompts_queries(sample, other, monkeypatch):
    """Fitted by hand on the other text's queries, the codec gives the same keys; on its own text's others."""
    text = {"kind": "topics", "start": 0.6}
    monkeypatch.setattr("kvq_core.claims.measures.token_ids", lambda *_: (other.ids, "other"))
    lane = ClaimLane(method="squat", knobs={"bits": 2, "regularization": 0.1}, subspace=text)
    held = Context(sample.model).hold(sample, lane)
    swapped = capture(sample.model, "swapped", sample.ids, PROMPT)
    swapped.queries[..., :PROMPT, :] = other.queries[..., :PROMPT, :]
    by_hand = read_back(swapped, lane.model_copy(update={"subspace": "own"}))
    assert torch.equal(held.keys, by_hand.keys) and torch.equal(held.values, by_hand.values)
    assert not torch.equal(held.keys, read_back(sample, lane.model_copy(update={"subspace": "own"})).keys)
    with pytest.raises(ValueError, match="kivi reads no queries"):
        ClaimLane(method="kivi", subspace=text)


# --- subspaces, spectra, tails --------------------------------------------------------------------------------------


def test_deviations_from_other_subspaces_equal_a_direct_svd(sample, other, monkeypatch):
    monkeypatch.setattr("kvq_core.claims.measures.token_ids", lambda *_: (other.ids, "other"))
    others = {"sequence": {"kind": "topics"}}
    found = measured(sample, "other_subspaces", space="post", rank_of_128=32, others=others)
    by_layer = []
    for own, foreign in zip(sample.queries.double(), other.queries.double(), strict=True):
        heads = []
        for kv in range(2):
            basis = torch.linalg.svd(foreign.unflatten(0, (2, -1))[kv].flatten(0, 1)).Vh[:8]
            q = own.unflatten(0, (2, -1))[kv, :, PROMPT:].flatten(0, 1)
            unit = q / q.norm(dim=-1, keepdim=True)
            heads.append((unit - unit @ basis.T @ basis).norm(dim=-1).mean())
        by_layer.append(torch.stack(heads).mean().item())
    assert found["sequence"] == pytest.approx(sum(by_layer) / len(by_layer), rel=1e-4)
    assert found["sequence.first"] == pytest.approx(by_layer[0], rel=1e-4)
    assert found["sequence.last"] == pytest.approx(by_layer[-1], rel=1e-4)
    assert found["all"] < found["sequence"]


def test_the_fit_finds_the_decay_it_is_given():
    exact = 3 * torch.exp(-0.07 * torch.arange(64.0))
    rho, r_squared = decay(torch.stack([exact, torch.linspace(2, 1, 64)]))
    assert rho[0] == pytest.approx(0.07, rel=1e-5) and r_squared[0] == pytest.approx(1)
    assert rho[1] == pytest.approx(-np.polyfit(range(64), np.log(np.linspace(2, 1, 64)), 1)[0], rel=1e-4)


@pytest.mark.parametrize(("rho", "channels", "bits"), [(0.1, 1024, 2), (0.02, 192, 3.5), (0.5, 64, 4)])
def test_the_predicted_ratio_is_the_papers_closed_form(rho, channels, bits):
    alpha = channels * rho / 4 - 2 * bits / 7 * math.log(4)
    closed = (1 - math.exp(-8 * alpha)) / (1 - math.exp(-alpha)) / 4 ** (2 * bits - bits)
    assert error_ratio(rho, channels, bits) == pytest.approx(math.sqrt(closed))
    assert error_ratio(0.1, 1024, 2) == pytest.approx(0.25, rel=1e-6)  # 2^(b - b_1)


def test_measured_error_ratios_equal_a_direct_computation(sample):
    latent = {"method": "svdq", "tensors": "keys", "knobs": {"schedule": [7, 6, 5, 4, 3, 2, 1, 0]}}
    knobs = {"group_size": PROMPT, "residual_length": PROMPT}
    direct = [
        {"method": "per_channel", "tensors": "keys", "keys": "pre", "knobs": {"bits": bits, **knobs}} for bits in (3, 4)
    ]
    found = measured(sample, "decay", bits=3.5, latent=latent, direct=direct)
    true, ratios = sample.keys[..., :PROMPT, :].double(), []
    read = [read_back(sample, ClaimLane.model_validate(lane)).keys.double() for lane in (latent, *direct)]
    for layer in range(sample.layers):
        errors = [(keys[layer] - true[layer]).square().sum().sqrt().item() for keys in read]
        ratios.append(errors[0] / math.sqrt(errors[1] * errors[2]))
    assert found["measured"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert found["limit"] == 2**-3.5


def test_claims_of_one_measurement_share_it(sample, monkeypatch):
    context, calls = Context(sample.model), []
    monkeypatch.setattr(MEASURES["tails"], "on_text", lambda self, *_: calls.append(self.sigmas) or {"x": self.sigmas})
    for sigmas in (4, 4, 3):
        measure = MEASURES["tails"].model_validate({"sigmas": sigmas})
        assert context.numbers(measure, sample) == {"x": sigmas}
    assert calls == [4, 3]


def test_tails_of_known_distributions(sample):
    shape = sample.keys.shape
    draw = torch.Generator().manual_seed(1)
    normal, uniform = torch.randn(shape, generator=draw), torch.rand(shape, generator=draw)
    known = capture(sample.model, "known", sample.ids, PROMPT)
    known.keys, known.values = 5 + 3 * normal, uniform
    found = measured(known, "tails", sigmas=2)
    assert found["keys.beyond"] == pytest.approx(0.0455, abs=0.005) and found["values.beyond"] == 0
    assert found["values.kurtosis"] == pytest.approx(-1.2, abs=0.05)
    x = known.keys[0, :, :PROMPT].double().flatten()
    moments = (((x - x.mean()) ** 4).mean() / ((x - x.mean()) ** 2).mean() ** 2 - 3).item()
    alone = capture(sample.model, "alone", sample.ids, PROMPT)
    alone.keys, alone.values = known.keys[:1], known.values[:1]
    assert measured(alone, "tails", sigmas=2)["keys.kurtosis"] == pytest.approx(moments, rel=1e-6)


def test_one_heads_exceptions_are_counted_one_by_one(sample):
    data = {"window": 5, "share": 0.2, "strong": 1.5, "layer": 1, "head": 3}
    found = measured(sample, "one_head", **data)
    now, count = window_attention(sample, 1, 5)[3], 0
    q, k = sample.queries[1, 3].double(), sample.keys[1, 1].double()
    rows = torch.stack(
        [torch.softmax(k[: t + 1] @ q[t] / q.shape[-1] ** 0.5, 0)[:PROMPT] for t in range(PROMPT, TOKENS)]
    )
    for token in range(PROMPT):
        count += bool(now[:, token].max() < 1 / PROMPT and rows[:, token].max() > 1.5 / PROMPT)
    assert found["exceptions"] == count > 0 and found["exceptions_share"] == count / PROMPT
    with pytest.raises(MethodError, match="no head 99"):
        measured(sample, "one_head", **{**data, "head": 99})


# --- decoding -------------------------------------------------------------------------------------------------------


def test_a_slope_is_told_for_a_hundred_tokens():
    series = np.array([0.1, 0.4, 0.2, 0.9, 0.3], np.float32)
    assert slope(series) == pytest.approx(100 * np.polyfit(range(5), series, 1)[0], rel=1e-5)
    assert slope(0.5 + 0.01 * np.arange(64)) == pytest.approx(1.0)


def test_more_lanes_than_a_run_takes_are_refused_before_anything_is_measured():
    data = {"tokens": 64, "metrics": ["kld"], "lanes": {f"k{i}": {"method": "kivi"} for i in range(65)}}
    with pytest.raises(ValueError, match="at most 64"):
        MEASURES["decoded"].model_validate(data)


def record(kld_mean=0.2):
    metrics = SimpleNamespace(kld_mean=kld_mean, ppl_ratio=1.1)
    lane = SimpleNamespace(label="a", metrics=metrics, memory=SimpleNamespace(key_bits=3.0, value_bits=5.0), error="")
    return SimpleNamespace(lanes=[lane])


def test_numbers_of_a_run_are_its_lanes():
    found = numbers_of(record(), {"lane/0/kld": np.arange(4.0)})
    assert found["a.compression"] == 4 and found["a.kld_slope"] == pytest.approx(100) and found["a.kld"] == 0.2
    with pytest.raises(MethodError, match="Lane a was not measured"):
        numbers_of(record(None), {"lane/0/kld": np.arange(4.0)})


@pytest.mark.parametrize(("limit", "best"), [(1.0, 1.0), (1.01, 4.0), (1.2, 8.0)])
def test_lossless_is_the_largest_compression_within_the_limit(sample, monkeypatch, limit, best):
    lanes = {name: {"method": "qaq"} for name in ("fine", "coarse", "bad")}
    known = {"fine": (1.005, 4.0), "coarse": (1.1, 8.0), "bad": (2.0, 16.0)}
    numbers = {
        f"{n}.{m}": v for n, pair in known.items() for m, v in zip(("ppl_ratio", "compression"), pair, strict=True)
    }
    monkeypatch.setattr("kvq_core.claims.decoding.Decoding._all", lambda *_: numbers)
    found = measured(sample, "lossless", lanes=lanes, tokens=51, metrics=["ppl_ratio"], limit=limit)
    assert found["lossless.compression"] == best


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_codebook_sizes_by_hand():
    rows = [
        {"name": "values", "digits": 1024, "printed_mb": 2.0},
        {"name": "keys", "levels": 64, "stages": 11, "printed_mb": 2.75},
    ]
    found = MEASURES["codebook_sizes"].model_validate({"channels": 1024, "tokens": 131072, "rows": rows}).cases(None)
    assert found["values"] == {"printed_mb": 2.0, "formula_mb": 2.0, "cache_mb": 256.0}
    assert found["keys"]["formula_mb"] == 512 * 64 * 11 * 4 * 2 / 2**20 == 2.75


def test_decoding_memory_by_hand():
    model = {"weights_gb": 16, "layers": 32, "kv_heads": 8, "head_dim": 128}
    common = {"tokens": 1000, "bits": 16}
    rows = [
        {"name": "is", "says": "is", "printed_gb": 32.262144, **common},
        {"name": "above", "says": "above", "printed_gb": 8, **common},
        {"name": "below", "says": "below", "printed_gb": 8, **common},
    ]
    found = MEASURES["decoding_memory"].model_validate({**model, "rows": rows}).cases(None)
    assert found["is"]["formula_gb"] == pytest.approx(16 + 1000 * 131072 / 1e9)
    assert found["is"]["off"] == pytest.approx(2, rel=0.01)
    assert found["above"]["off"] == 1 and found["below"]["off"] == pytest.approx(16.131072 / 8)


def test_codebooks_that_lie_there_are_weighed(smollm):
    text = SimpleNamespace(model=smollm)
    found = MEASURES["codebook_files"].model_validate({"bits": 1, "levels": 16}).on_text(Context(smollm), text)
    assert found["value_held_mb"] == found["value_formula_mb"] == 192 * 192 * 2 / 2**20
    # a pair's 2 x 2 matrix is (x, -y; y, x): two numbers are held
    assert found["key_held_mb"] == found["key_formula_mb"] / 2


def test_codebooks_that_are_missing_are_a_reason(sample):
    with pytest.raises(MethodError, match="codebooks train"):
        measured(sample, "codebook_files", bits=2, levels=16)


# --- texts ----------------------------------------------------------------------------------------------------------


def test_made_texts_follow_from_their_seed():
    assert key_values(3) == key_values(3) != key_values(4) and word_problems(3) == word_problems(3) != word_problems(4)
    pairs = json.loads(key_values(3).split("\n\n")[1])
    assert len(pairs) == 40 and all(len(name) == 36 for pair in pairs.items() for name in pair)


def test_word_problems_are_solved_right():
    for block in word_problems(7).split("\n\n"):
        question, answer = block.split("\nAnswer: ")
        boxes, each, given, price = (int(word) for word in re.findall(r"\d+", question))
        assert answer.endswith(f"#### {(boxes * each - given) * price}") and boxes * each > given


@pytest.mark.parametrize("kind", ["uuids", "mathematics"])
def test_made_texts_are_long_enough_and_named(smollm, kind):
    ids, source = token_ids(smollm, Text(kind=kind, seed=2), 640)
    assert len(ids) == 640 and source == f"{kind} made from seed 2"
    with pytest.raises(ValueError, match="other texts have none"):
        Text(kind=kind, name="x")
