"""Plain-language explanations, on records made to show one thing and on a really planted damage."""

import re

import pytest
import torch

from kvq_core.analysis.explain import _depth, explain
from kvq_core.codecs.groups import GroupCodec
from kvq_core.methods import Prompt, make, methods
from kvq_core.methods.inner import InnerCodec
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.fields import Record, StressRecord
from kvq_core.spec import Lane, parse_spec
from tests.support.ui_record_factory import make_run

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
                "prompt": "Tell me about the harbour. " + FACTS * 8,
                "continuation": ANSWER,
                "score_chunk": 16,
                "lanes": [
                    {"label": "token", "method": "per_token", "knobs": {"bits": 2}},
                    {"label": "channel", "method": "kivi", "knobs": {"bits": 4}},
                ],
                "stress": stress if stressed else {},
            }
        )
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
    assert f"Key errors concentrate in layer {LAYER}, KV head {HEAD} (" in told
    assert f"channels {PAIR}/{PAIR + 32}" in told and "share a scale" in told
    assert f"stressed in layer {LAYER}, KV head {HEAD}" in told
    assert "Lane 'channel' gives every key channel scales of its own and has no such loss there." in told
    assert found.suggestion is not None and found.suggestion.knobs["bits"] == 3 and "keys and values" in found.because


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


def test_a_wholly_stressed_run_says_what_channels_lose_and_of_scales_what_the_method_declares() -> None:
    record, arrays = even(3)  # of which the third shares a scale among key channels, the first does not
    record.stress = StressRecord(
        settings={},
        layers=list(range(30)),
        kv_heads=[0, 1, 2],
        pairs=[],
        positions=32,
        kld_max=0.0,
        logit_max=0.0,
        tolerance=1e-4,
        same_tokens=True,
        sentence="",
    )
    arrays["reference/key_channel_energy"][..., 3] = 100.0  # ten times as large
    told = [" ".join(explain(record, arrays, index).sentences) for index in (0, 2)]  # all have the same absolute error
    assert "10 times as much of themselves as outlying ones." in told[0] and "share" not in told[0]
    assert "10 times as much of themselves as outlying ones: they share scales." in told[1]
    for index in (0, 2):
        arrays[f"lane/{index}/key_channel_error"][..., 3] = 100.0
    told = [" ".join(explain(record, arrays, index).sentences) for index in (0, 2)]
    assert "as much of themselves as the others: each has a scale of its own." in told[0]
    assert "as much of themselves as the others." in told[1]


def test_even_damage_is_called_even() -> None:
    record, arrays = even()
    assert explain(record, arrays, 0).sentences[0].startswith("The damage is spread evenly")


def test_a_damaged_head_is_named_for_the_tensor_it_is_damaged_in() -> None:
    record, arrays = even()
    arrays["lane/1/value_error"][4, 2] = 9.0
    assert explain(record, arrays, 1).sentences[0] == (
        "Value errors concentrate in layer 4, KV head 2 (9.0 times the lane's median head)."
    )


def test_what_the_keys_alone_do_to_the_scores_names_their_heads() -> None:
    """What other layers' errors do to a layer's scores is no damage of its keys."""
    record, arrays = even()
    arrays["lane/0/delta_mean"][7, 3:6] = 9.0
    assert "layer 7, KV head 1" in explain(record, arrays, 0).sentences[0]
    arrays["lane/0/delta_by_keys"] = torch.ones(8, 30, 9)
    assert explain(record, arrays, 0).sentences[0].startswith("The damage is spread evenly")


def test_moved_sinks_are_told_with_those_the_lane_keeps() -> None:
    record, arrays = even()
    arrays["lane/0/sink_mass"] -= 0.1
    said = "The first tokens lost 10.0% of all attention; "
    assert f"{said}this lane keeps no first tokens in fp16." in explain(record, arrays, 0).sentences
    for changes in ({"knobs": make("innerq").model_dump(mode="json"), "method": "innerq"}, {"sink_tokens": 32}):
        record.lanes[0] = record.lanes[0].model_copy(update=changes)
        found = explain(record, arrays, 0)
        assert f"{said}though this lane keeps the first 32 in fp16." in found.sentences
        assert "sink" not in found.because


def test_a_suggestion_is_no_lane_the_run_already_has() -> None:
    record, arrays = even()
    first = explain(record, arrays, 0).suggestion
    assert first is not None
    record.lanes[1] = record.lanes[1].model_copy(
        update={"method": first.method, "knobs": first.build().model_dump(mode="json"), "layers": "all"}
    )
    assert explain(record, arrays, 0).suggestion is None


def test_a_better_lane_of_the_run_is_pointed_at() -> None:
    record, arrays = even()
    record.lanes[1].metrics.kld_mean, record.lanes[1].memory.kv_ratio = 0.02, 0.2
    assert any("Compare lane 'Lane 1'" in s for s in explain(record, arrays, 0).sentences)
    assert not any("Compare lane" in s for s in explain(record, arrays, 1).sentences)


def test_no_explanation_of_few_positions() -> None:
    record, arrays = make_run(1, scored=49)
    assert explain(record, arrays, 0).sentences == ()


def lanes_of_one_run(*lanes: tuple[str, str, dict, str, float]) -> tuple[Record, dict[str, torch.Tensor]]:
    """Lanes (label, method, knobs, tensors, mean KLD), damaged everywhere: also where others' errors pass through."""
    record, arrays = make_run(len(lanes), labels=tuple(label for label, *_ in lanes))
    for index, (label, method, knobs, tensors, kld) in enumerate(lanes):
        lane = Lane(label=label, method=method, knobs=knobs, tensors=tensors)
        key, value = (3.0 if window.step is not None else None for window in lane.windows())
        old = record.lanes[index]
        changes = {
            "method": method,
            "knobs": lane.build().model_dump(mode="json"),
            "tensors": tensors,
            "metrics": old.metrics.model_copy(update={"kld_mean": kld}),
            "memory": old.memory.model_copy(update={"key_bits_quantized": key, "value_bits_quantized": value}),
        }
        record.lanes[index] = old.model_copy(update=changes)
        arrays[f"lane/{index}/delta_mean"][7, 3:6] = 20.0
        arrays[f"lane/{index}/value_error"][4, 2] = 20.0
        arrays[f"lane/{index}/sink_mass"] -= 0.1
        arrays["reference/key_channel_energy"][7, 1, [14, 46]] = 900.0
        arrays[f"lane/{index}/key_channel_error"][7, 1] = 90.0
    return record, arrays


KEYS = re.compile(r"\bkeys?\b|score|first tokens|attention", re.IGNORECASE)
VALUES = re.compile(r"\bvalues?\b", re.IGNORECASE)


@pytest.mark.long("combine", sample=72)
@pytest.mark.slow
@pytest.mark.parametrize("stressed", [False, True])
@pytest.mark.parametrize("tensors", ["both", "keys", "values"])
@pytest.mark.parametrize("method", [name for name, method in methods().items() if method.quantizes])
def test_nothing_is_said_of_what_a_lane_leaves_alone(method, tensors, stressed) -> None:
    record, arrays = lanes_of_one_run(("lane", method, {}, tensors, 0.2))
    if stressed:
        record.stress = StressRecord(
            settings={},
            layers=[7],
            kv_heads=[1],
            pairs=[],
            positions=32,
            kld_max=0.0,
            logit_max=0.0,
            tolerance=1e-4,
            same_tokens=True,
            sentence="",
        )
    lane, found = record.lanes[0], explain(record, arrays, 0)
    told = " ".join((*found.sentences, found.because)).replace(
        "The stress is on keys, which this lane leaves alone.", ""
    )
    assert ("keys" in lane.quantized) == bool(KEYS.search(told)), told
    assert ("values" in lane.quantized) == bool(VALUES.search(told)), told
    assert ("share a scale" in told) == ("keys" in lane.quantized and methods()[method].scales[0] == "channels")
    assert "would help" not in told


@pytest.mark.parametrize("method", sorted(set(methods()) - {"fp16", "commvq"}))
def test_scales_are_declared_as_the_codecs_group(method) -> None:
    """commvq needs trained codebooks to fit; it shares one norm among all heads and declares nothing."""
    cls = methods()[method]
    widths = {"value_bits": 2} if "value_bits" in cls.model_fields else {}
    made = make(method, **widths)
    random = torch.Generator().manual_seed(1)
    keys, values, queries = (torch.randn(1, 2, 64, 64, generator=random) for _ in range(3))
    fitted = made.fit(Prompt(keys, values, queries, rotated=keys))
    for codec, declared, x in zip((fitted.key, fitted.value), cls.scales, (keys, values), strict=True):
        if isinstance(codec, GroupCodec | InnerCodec):
            assert declared == codec.axis
        elif declared is not None and codec is not None:  # a large one costs those precision that share its scale
            axis = -1 if declared == "channels" else -2
            large = x.index_fill(axis, torch.tensor([5]), 100.0)
            beside = torch.tensor([at for at in range(16) if at != 5])
            lost = [(codec.decode(codec.encode_prompt(t, 0)) - t).index_select(axis, beside) for t in (x, large)]
            assert lost[1].square().mean() > 4 * lost[0].square().mean()


def test_layers_a_lane_leaves_alone_are_not_named() -> None:
    record, arrays = lanes_of_one_run(("lane", "kivi", {}, "both", 0.2))
    record.lanes[0] = record.lanes[0].model_copy(update={"layers": [0, 1, 2]})
    assert not re.search(r"layer [47]", " ".join(explain(record, arrays, 0).sentences))


def test_the_tensor_that_costs_most_is_named_where_a_lane_of_the_run_shows_it() -> None:
    """K4 V4 stores the same keys as K4 V2 and moves far less: it is the values; of K2 V2 it is the keys."""
    record, arrays = lanes_of_one_run(
        ("K4 V4", "kivi", {"bits": 4}, "both", 0.0085),
        ("K2 V2", "kivi", {"bits": 2}, "both", 0.29),
        ("K4 V2", "kivi", {"key_bits": 4, "value_bits": 2}, "both", 0.047),
        ("V2 alone", "kivi", {}, "values", 0.041),
    )
    both, keys, values, alone = (explain(record, arrays, index) for index in range(4))
    told = " ".join(values.sentences)
    assert "Value errors concentrate in layer 4" in told and not KEYS.search(told)
    assert "Lane 'K4 V4' differs in the values alone: mean KLD 0.0085 instead of 0.047 nats, at 22.0%" in told
    assert values.suggestion is not None and values.suggestion.knobs["key_bits"] == 4
    assert values.suggestion.knobs["value_bits"] == 3 and "lane 'K4 V4' shows" in values.because
    assert keys.suggestion is not None and keys.suggestion.knobs["key_bits"] == 3
    assert "value" not in " ".join(keys.sentences).lower() and "differs in the keys alone" in " ".join(keys.sentences)
    assert alone.suggestion is not None and alone.suggestion.build().width("value") == 3
    assert alone.suggestion.tensors == "values" and "all it quantizes" in alone.because
    assert "no lane of this run shows" in both.because


def test_a_setting_that_a_lane_of_the_run_shows_to_help_is_told() -> None:
    record, arrays = lanes_of_one_run(
        ("bare", "kivi", {"sink_tokens": 0}, "both", 0.2),
        ("sinks", "kivi", {"sink_tokens": 32}, "both", 0.05),
        ("not much", "kivi", {"sink_tokens": 4}, "both", 0.15),
    )
    assert any("'sinks' differs in sink tokens alone" in said for said in explain(record, arrays, 0).sentences)
    assert not any("differs in" in said for said in explain(record, arrays, 1).sentences)


def test_a_method_of_an_older_version_is_explained_all_the_same() -> None:
    for changes in ({"knobs": {"lost": 1}}, {"method": "lost"}):
        record, arrays = lanes_of_one_run(("lane", "kivi", {}, "both", 0.2))
        record.lanes[0] = record.lanes[0].model_copy(update=changes)
        found = explain(record, arrays, 0)
        assert found.sentences and (found.suggestion is None or changes.get("method") is None)


def test_an_answer_that_ended_early_says_nothing_of_where_no_token_is():
    record, arrays = make_run(1, scored=440, tokens=480)
    few = {"token_ids": record.reference.token_ids[:60]}
    ended = record.model_copy(update={"reference": record.reference.model_copy(update=few)})
    error = torch.tensor([1.0] * 4 + [0.0] * 12).repeat(4, 6, 1)  # 40 + 59 tokens, in buckets of 30
    assert _depth(ended, even := {"lane/0/depth_score_error": error, "lane/0/sink_mass": error[:1] * 0}, 0) == ""
    error[..., 0] = 9.0
    assert "beginning of the context" in _depth(ended, even, 0)
