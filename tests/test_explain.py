"""Verdicts and plain-language explanations, on records made to show one thing and on a really planted damage."""

import pytest
import torch

from kvq_core.explain import explain
from kvq_core.record import Record, StressRecord
from kvq_core.run import compare_on
from kvq_core.spec import parse_spec
from kvq_core.verdict import EXPLAINED, verdict
from tests.ui_record_factory import make_run

LAYER, HEAD, PAIR = 11, 1, 20
FACTS = "The harbour keeps its tide tables by hand and the brass gauge has a paper drum. "
ANSWER = (
    "The harbour keeps its tide tables by hand. The brass gauge has a paper drum, and a pen draws the height of the "
    "water on it through the day and the night. Every morning the harbour master reads the drum, writes the heights "
    "into the book and winds the clock that turns it."
)


def even(lanes: int = 2) -> tuple[Record, dict[str, torch.Tensor]]:
    """A run in which nothing stands out."""
    record, arrays = make_run(lanes)
    for index in range(lanes):
        for name in ("delta_mean", "value_error", "key_error", "key_channel_error", "depth_score_error"):
            arrays[f"lane/{index}/{name}"] = torch.ones_like(arrays[f"lane/{index}/{name}"])
        arrays[f"lane/{index}/sink_mass"] = torch.zeros_like(arrays[f"lane/{index}/sink_mass"])
    arrays["reference/key_channel_energy"] = torch.ones_like(arrays["reference/key_channel_energy"])
    return record, arrays


@pytest.fixture(scope="module")
def planted(smollm) -> dict[bool, tuple[Record, dict[str, torch.Tensor]]]:
    """The same run with and without an outlying channel pair in one head of one layer."""
    found = {}
    for stressed in (False, True):
        stress = {"key_outlier_scale": 64, "key_outlier_pairs": [PAIR], "layers": [LAYER], "kv_heads": [HEAD]}
        spec = parse_spec(
            {
                "prompt": "Tell me about the harbour. " + FACTS * 8, "continuation": ANSWER, "score_chunk": 16,
                "lanes": [
                    {"label": "token", "method": "per_token", "knobs": {"bits": 2}},
                    {"label": "channel", "method": "kivi", "knobs": {"bits": 4}},
                ],
                "stress": stress if stressed else {},
            }
        )  # fmt: skip
        *_, last = compare_on(smollm, spec)
        found[stressed] = (last.record, last.arrays)
    return found


def test_planted_damage_is_named(planted) -> None:
    record, arrays = planted[True]
    assert record.stress is not None and record.stress.same_tokens and record.stress.kld_max <= record.stress.tolerance
    assert record.stress.pairs == [PAIR] and "does not change" in record.stress.sentence
    chosen, without = (planted[stressed][1]["reference/topk_ids"][:, 0] for stressed in (True, False))
    assert len(chosen) > 50 and torch.equal(chosen, without)  # the reference would say the same
    found = explain(record, arrays, 0)
    told = " ".join(found.sentences)
    assert f"layer {LAYER}, KV head {HEAD}, keys" in told
    assert f"channels {PAIR}/{PAIR + 32}" in told and "share a scale" in told
    assert f"stressed in layer {LAYER}, KV head {HEAD}" in told
    assert found.suggestion is not None and found.suggestion.method == "kivi" and "by channel" in found.because
    assert found.suggestion.knobs["bits"] == 2


def test_without_it_nothing_of_the_kind_is_named(planted) -> None:
    record, arrays = planted[False]
    assert record.stress is None
    for index in (0, 1):
        told = " ".join(explain(record, arrays, index).sentences)
        assert told and f"layer {LAYER}, KV head {HEAD}" not in told and f"{PAIR}/{PAIR + 32}" not in told
        assert "stress" not in told


def test_a_lane_that_groups_by_channel_is_not_hurt(planted) -> None:
    record, arrays = planted[True]
    told = " ".join(explain(record, arrays, 1).sentences)
    assert f"channels {PAIR}/{PAIR + 32}" not in told and "not hurt by the stress" in told


def test_a_wholly_stressed_run_says_whether_scales_are_shared() -> None:
    record, arrays = even()
    record.stress = StressRecord(
        settings={}, layers=list(range(30)), kv_heads=[0, 1, 2], pairs=[], positions=32, kld_max=0.0, logit_max=0.0,
        tolerance=1e-4, same_tokens=True, sentence="",
    )  # fmt: skip
    arrays["reference/key_channel_energy"][..., 3] = 100.0  # ten times as large
    told = explain(record, arrays, 0).sentences[-2:]  # every channel has the same absolute error
    assert any("10 times as much of themselves as outlying ones: they share scales" in s for s in told)
    arrays["lane/0/key_channel_error"][..., 3] = 100.0
    assert any("a scale of its own" in s for s in explain(record, arrays, 0).sentences)


def test_even_damage_is_called_even() -> None:
    record, arrays = even()
    found = explain(record, arrays, 0)
    assert found.sentences[0].startswith("The damage is spread evenly")
    assert (
        found.suggestion is not None
        and found.suggestion.knobs["value_bits" if "values" in found.because else "key_bits"]
    )


def test_a_damaged_layer_is_named_and_left_alone() -> None:
    record, arrays = even()
    arrays["lane/1/value_error"][4, 2] = 9.0
    found = explain(record, arrays, 1)
    assert "layer 4, KV head 2, values (9.0 times" in found.sentences[0]
    assert found.suggestion is not None and 4 not in found.suggestion.layers and len(found.suggestion.layers) == 29


def test_moved_sinks_ask_for_a_sink_window() -> None:
    record, arrays = even()
    arrays["lane/0/sink_mass"] -= 0.1
    found = explain(record, arrays, 0)
    assert any("first tokens lost 10.0% of all attention" in s for s in found.sentences)
    assert found.suggestion is not None and 32 in (
        found.suggestion.sink_tokens,
        found.suggestion.knobs.get("sink_tokens"),
    )


def test_a_suggestion_is_no_lane_the_run_already_has() -> None:
    record, arrays = even()
    first = explain(record, arrays, 0).suggestion
    assert first is not None
    record.lanes[1] = record.lanes[1].model_copy(
        update={"method": first.method, "knobs": first.build().model_dump(mode="json"), "layers": "all"}
    )
    again = explain(record, arrays, 0).suggestion
    assert again is None or again.knobs != first.knobs


def test_a_better_lane_of_the_run_is_pointed_at() -> None:
    record, arrays = even()
    record.lanes[1].metrics.kld_mean, record.lanes[1].memory.kv_ratio = 0.02, 0.2
    assert any("Compare lane 'Lane 1'" in s for s in explain(record, arrays, 0).sentences)
    assert not any("Compare lane" in s for s in explain(record, arrays, 1).sentences)


def test_no_explanation_and_no_verdict_of_few_positions() -> None:
    record, arrays = make_run(1, scored=49)
    assert explain(record, arrays, 0).sentences == ()
    assert verdict(record.lanes[0], record.noise_floor).word == "no verdict"


@pytest.mark.parametrize(
    ("kld", "p99", "flips", "word"),
    [(0.01, 0.1, 0.01, "close"), (0.011, 0.1, 0.01, "marginal"), (0.01, 0.11, 0.0, "marginal"),
     (0.1, 1.0, 0.05, "marginal"), (0.1, 1.0, 0.051, "risky"), (0.2, 0.5, 0.0, "risky")],
)  # fmt: skip
def test_tiers_stand_beside_the_noise_floor(kld: float, p99: float, flips: float, word: str) -> None:
    record, _ = make_run(1)
    m = record.lanes[0].metrics.model_copy(update={"kld_mean": kld, "kld_p99": p99, "flip_rate": flips})
    found = verdict(record.lanes[0].model_copy(update={"metrics": m}), record.noise_floor)
    assert found.word == word
    assert f"mean KLD {kld:.2g}, p99 {p99:.2g}" in found.why and "noise floor: mean KLD" in found.why
    assert found.why.endswith(EXPLAINED)
