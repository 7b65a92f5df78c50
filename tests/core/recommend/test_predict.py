"""What captures foretell of layers' costs: a model whose loss comes from one KV head of one layer, predictors computed
anew by a plain transformers loop, and correlations whose answer is known."""

import json
from copy import deepcopy
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

from benchmarks.measured import figures
from kvq_core.analysis.foretells import FIRST, MEASURES
from kvq_core.cli.main import main
from kvq_core.errors import SpecError
from kvq_core.models import load
from kvq_core.recommend import predict as picture
from kvq_core.recommend.predict import (
    PREDICTORS,
    SHOWN,
    PromptSeen,
    Seen,
    cells_of,
    correlations,
    kept_prompt,
    look,
    work_sentence,
)
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.record.store import open_store
from kvq_core.studies.cells import CellPlan, plan
from kvq_core.studies.spec import parse_study
from kvq_core.studies.stored_plan import keep_plan
from tests.support.plain_cache import GROUP, PlainCache, plain_logits
from tests.support.study_models import CONFIG, study_data, write_model
from ui.views.damage import CHOICES

LAYERS, HURT = 4, 2  # layers, and the one that all loss comes from
KNOBS = {"group_size": GROUP, "residual_length": 8}
LANES = [
    {"label": "four", "method": "per_token", "knobs": {"bits": 4, **KNOBS}},
    {"label": "two", "method": "per_token", "knobs": {"bits": 2, **KNOBS}},
    {"label": "keys two", "method": "per_token", "knobs": {"bits": 2, **KNOBS}, "tensors": "keys"},
    {"label": "values two", "method": "per_token", "knobs": {"bits": 2, **KNOBS}, "tensors": "values"},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values are zero but for KV head 0 of layer HURT: what is done to any other key or value reaches no logit."""
    place = write_model(
        tmp_path_factory.mktemp("models") / "made", config=LlamaConfig(**CONFIG | {"num_hidden_layers": LAYERS})
    )
    model = AutoModelForCausalLM.from_pretrained(place)
    with torch.no_grad():
        for at, layer in enumerate(model.model.layers):
            weight = layer.self_attn.v_proj.weight
            weight[CONFIG["head_dim"] if at == HURT else 0 :] = 0
    model.save_pretrained(place)
    return place


@pytest.fixture
def planned(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellPlan:
    """A study that is known to the store of this test."""
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVQ_STORE", str(tmp_path / "store"))
    found = plan(parse_study(study_data(made, prompts=5, lanes=LANES)))
    keep_plan(open_store(), found)
    return found


def test_the_loss_of_one_head_is_foretold_by_what_sees_it_and_prompts_are_kept(
    planned: CellPlan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["predict", "--study", planned.id, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "5 of 5 prompts to do" in err and f"{4 * LAYERS} of a single layer in 1 passes of up to 64" in err
    rows = json.loads(out)
    assert {*rows[0]} == {"predictor", "level", "spearman", "low", "high", "n", "why"}
    told = {(row["level"], row["predictor"]): row for row in rows}
    assert [row["predictor"] for row in rows if row["level"] == "layer"][0] == "output_error"
    best, blind = told["layer", "output_error"], told["layer", "key_error"]
    # between prompts rounding alone differs: where nothing is hurt, ranks are tied within a prompt only
    assert best["n"] == 5 * 4 * LAYERS and best["low"] > 0.6 and blind["high"] < best["low"]
    assert told["layer", "value_error"]["spearman"] < best["spearman"]  # it does not see keys
    assert told["layer of a lane", "output_error"]["spearman"] == pytest.approx(1, abs=1e-9)
    bias = told["layer", "key_bias"]
    assert (bias["spearman"], bias["low"], bias["high"]) == (None, None, None) and "not captured" in bias["why"]
    assert told["lane", "output_error"]["n"] == 20 and told["lane", "output_error"]["spearman"] > 0.8

    monkeypatch.setattr(picture, "compare_on", None)  # nothing is computed again
    assert main(["predict", "--study", planned.id]) == 0
    out, err = capsys.readouterr()
    assert "0 of 5 prompts to do" in err
    assert next(line for line in out.splitlines() if " output_error " in line).split()[-1] == str(best["n"])


def test_ctrl_c_loses_one_prompt_at_most(
    planned: CellPlan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = picture.compare_on, []

    def interrupted(*given: object) -> object:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(picture, "compare_on", interrupted)
    assert main(["predict", "--study", planned.id, "--json"]) == 130
    out, err = capsys.readouterr()
    assert out == "" and "2 of 5 prompts are kept, and the same command goes on from there" in err
    assert [kept_prompt(cell) is not None for cell in planned.cells] == [True, True, False, False, False]


def test_predictors_are_what_a_plain_loop_finds(planned: CellPlan) -> None:
    """Key error, value error, attention-weighted value error, KL of the attention and the KLD of the lane "two"."""
    cell = planned.cells[0]
    model = load(cell.model, None)
    seen = {each.layer: each for each in next(look(model, [cell])).seen if each.lane == "two"}
    ids = model.encode(cell.spec.prompt)
    tokens = _followed(model, ids, cell.spec.max_new_tokens)
    exact, lane = DynamicCache(), PlainCache(2, "channels", KNOBS["residual_length"], stored=False)
    caches = []
    for cache in (exact, lane):
        caches.append(_read(model, ids, tokens[:-1], cache))
    (plain_kv, plain_attention, plain_logits_), (lane_kv, lane_attention, lane_logits) = caches
    p, q = plain_logits_.log_softmax(-1), lane_logits.log_softmax(-1)
    assert seen[None].kld == pytest.approx((p.exp() * (p - q)).sum(-1).mean().item(), rel=0.02)
    for layer in range(LAYERS):
        (keys, values), (own_keys, own_values) = plain_kv[layer], lane_kv[layer]
        found = seen[layer].predictors
        lost = (own_keys - keys).flatten(1).norm(dim=1) / keys.flatten(1).norm(dim=1)
        assert found["key_error"] == pytest.approx(lost.mean().item(), rel=0.01)
        mean = sum(a[layer] for a in _padded(plain_attention, keys.shape[1])) / len(plain_attention)
        gone, there = (_weighed(mean, x) for x in (own_values - values, values))
        expected = torch.where(there > 0, gone / there.clamp_min(1e-30), 0.0).sqrt().mean()
        assert found["weighted_value_error"] == pytest.approx(expected.item(), rel=0.01)
        size = values.flatten(1).norm(dim=1)
        lost = torch.where(size > 0, (own_values - values).flatten(1).norm(dim=1) / size.clamp_min(1e-30), 0.0)
        assert found["value_error"] == pytest.approx(lost.mean().item(), rel=0.01)
        kl = [
            (a[layer] * (a[layer] / b[layer]).log()).sum(-1)
            for a, b in zip(plain_attention, lane_attention, strict=True)
        ]
        assert found["attention_kl"] == pytest.approx(torch.stack(kl).mean().item(), rel=0.02)
    assert seen[HURT].kld > 0 and seen[HURT].predictors["value_error"] > 0.01


def _followed(model, ids: list[int], new: int) -> list[int]:
    found: list[int] = []
    for _ in range(new):
        logits = plain_logits(model, ids + found, [], len(ids) + len(found), PlainCache(4, "channels", 9999, False))
        found.append(int(logits[-1].argmax()))
    return found


def _read(model, ids: list[int], fed: list[int], cache):
    """Keys and values of every layer (kv_heads, tokens, head_dim) in the end; of each fed token its attention, by layer
    (query_heads, tokens), and its logits; in float64."""
    whole = deepcopy(model.model).double()
    whole.set_attn_implementation("eager")
    attention, logits, start = [], [], 0
    for piece in [ids, *([token] for token in fed)]:
        positions = torch.arange(start, start + len(piece))[None]
        with torch.no_grad():
            out = whole(
                input_ids=torch.tensor([piece]),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                output_attentions=True,
            )
        if isinstance(cache, PlainCache):
            cache.end_chunk(exact=start == 0)
        start += len(piece)
        if piece is not ids:
            attention.append([weights[0, :, 0] for weights in out.attentions])
            logits.append(out.logits[0, 0])
    if isinstance(cache, PlainCache):
        held = [tuple(x[0] for x in cache.held[layer]) for layer in range(LAYERS)]
    else:
        held = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
    return held, attention, torch.stack(logits)


def _padded(attention, tokens: int):
    return [[torch.nn.functional.pad(a, (0, tokens - a.shape[-1])) for a in own] for own in attention]


def _weighed(mean: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (mean.unflatten(0, (len(x), -1)) * x.square().sum(-1)[:, None]).sum(-1).flatten()


def _made(prompt: int, values: np.ndarray, klds: np.ndarray) -> PromptSeen:
    seen = tuple(
        Seen(lane=f"lane {lane}", layer=layer, kld=klds[lane, layer], predictors={"key_error": x, "key_bias": 2.0})
        for (lane, layer), x in np.ndenumerate(values)
    )
    return PromptSeen(version=1, run=str(prompt), seconds=1.0, seen=seen)


def test_correlations_and_their_intervals_are_those_of_scipy_over_resampled_prompts() -> None:
    rng = np.random.default_rng(3)
    values = rng.random((5, 3, 6))
    klds = values + 0.3 * rng.random((5, 3, 6))
    prompts = [_made(at, *both) for at, both in enumerate(zip(values, klds, strict=True))]
    told = {(row["level"], row["predictor"]): row for row in correlations(prompts)}
    row = told["layer", "key_error"]
    assert row["spearman"] == pytest.approx(spearmanr(values.ravel(), klds.ravel()).statistic) and row["n"] == 90
    every = [
        spearmanr(values[list(own)].ravel(), klds[list(own)].ravel()).statistic for own in product(*[range(5)] * 5)
    ]
    assert [row["low"], row["high"]] == pytest.approx(np.percentile(every, [2.5, 97.5]), abs=0.01)
    within = [spearmanr(values[at, lane], klds[at, lane]).statistic for at in range(5) for lane in range(3)]
    assert told["layer of a lane", "key_error"]["spearman"] == pytest.approx(np.mean(within))
    constant = told["layer", "key_bias"]
    assert constant["spearman"] is constant["low"] is None and constant["why"].startswith("the predictor is the same")
    assert "NaN" not in json.dumps([*told.values()], allow_nan=False)
    assert {row["predictor"] for row in told.values()} == {*PREDICTORS}
    few = {(row["level"], row["predictor"]): row for row in correlations(prompts[:4])}["layer", "key_error"]
    assert few["spearman"] is not None and few["low"] is few["high"] is None  # too few prompts for an interval


@pytest.mark.parametrize(
    ("changes", "model", "said"),
    [
        ({}, "another", "--model 'another' has no cells in study"),
        ({"lanes": [{"label": "none", "method": "fp16"}]}, None, "No lane of this study quantizes a layer"),
    ],
)
def test_what_cannot_be_foretold_is_refused_in_one_line(
    made: Path, changes: dict, model: str | None, said: str
) -> None:
    planned = plan(parse_study(study_data(made, **changes)))
    with pytest.raises(SpecError, match=said):
        work_sentence(load(planned.cells[0].model, None), cells_of(planned, model))


def test_what_is_shown_first_is_what_foretold_best() -> None:
    """Of the layers of a lane: beaten on neither model, intervals apart, and of all such ones the best on the mean."""
    found = figures("predict")
    assert found and all(each["results_version"] == RESULTS_VERSION for each in found.values())

    of_lanes = [
        {row["predictor"]: row for row in each["rows"] if row["level"] == "layer of a lane"} for each in found.values()
    ]

    def on(measure: str) -> list[dict]:
        return [rows[SHOWN[measure]] for rows in of_lanes]

    def beaten(measure: str) -> bool:
        pairs = (pair for other in MEASURES for pair in zip(on(measure), on(other), strict=True))
        return any(other["low"] > own["high"] for own, other in pairs)

    unbeaten = [measure for measure in MEASURES if not beaten(measure)]
    assert len(of_lanes) == 2 and beaten("output") and beaten("relative")
    assert max(unbeaten, key=lambda measure: sum(row["spearman"] for row in on(measure))) == FIRST
    assert {*MEASURES} == {*SHOWN} == {name for _, name in CHOICES} and CHOICES[0][1] == FIRST


def test_an_unknown_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--study", "0123456789abcdef"]) == 2
    assert "is not in this store" in capsys.readouterr().err
