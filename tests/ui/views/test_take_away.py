"""In engines: a lane as an engine is told it, and what no engine has; flags are no answer of one prompt."""

from kvq_core.analysis.deploy import whole_lane
from kvq_core.methods import LayerKind
from kvq_core.record.fields import RuleRecord
from tests.support.ui_record_factory import make_run
from ui.views.take_away import take_away

FULL = (LayerKind(kind="full", kv_heads=3, key_dim=64, value_dim=64),) * 30


def lane(*rules: tuple[str, str], layers="all"):
    """A finished lane of rules (method, tensors)."""
    record, _ = make_run(1)
    own = [
        RuleRecord(
            method=method,
            title=method,
            summary="",
            knobs={},
            tensors=tensors,
            layers=layers,
            sink_tokens=None,
            recent_tokens=None,
        )
        for method, tensors in rules
    ]
    one = {"method": own[0].method, "knobs": {}, "tensors": own[0].tensors, "layers": layers, "title": own[0].title}
    several = {"method": None, "knobs": None, "tensors": "both", "layers": "all"}
    return record.lanes[0].model_copy(update={"rules": own, **(several if len(own) > 1 else one)})


def shown(lane, layers) -> str:
    """What the page says of a lane: never what to type, for that one prompt says nothing of."""
    html = take_away(lane, layers, "feedface")
    assert not any(
        word in html for word in ("-ctk", "--kv-cache-dtype", "--kv_cache_dtype", "cache_implementation", "<pre")
    )
    assert ("?study&amp;check=feedface" in html) == ("In engines: " in html)
    return html


def flags(lane, layers=FULL) -> list[str]:
    return [way.how for way in whole_lane(lane, layers)[0]]


def test_keys_and_values_by_two_rules_are_one_command():
    html = shown(lane(("q8_0", "keys"), ("q4_0", "values")), FULL)
    assert flags(lane(("q8_0", "keys"), ("q4_0", "values"))) == ["llama-server -m M.gguf -fa on -ctk q8_0 -ctv q4_0"]
    assert "In engines: llama.cpp<" in html
    assert "each of these" not in html and "<small>since 2024-05-19 (PR 7372), as of 0c1e57098" in html


def test_an_engine_that_cannot_have_a_lane_says_by_which_rule_and_the_rules_stand_alone():
    html = shown(lane(("q8_0", "keys"), ("kivi", "values")), FULL)
    assert "llama.cpp cannot have this lane, by its rule 2: it has no such format." in html
    assert "each of these stores everything by one" in html


def test_layers_that_stay_unquantized_are_listed_for_the_engine_that_can():
    html = shown(lane(("fp8", "both"), layers=list(range(1, 30))), FULL)
    assert flags(lane(("fp8", "both"), layers=list(range(1, 30)))) == [
        "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0"
    ]
    assert "SGLang cannot have this lane, by its rule 1: all layers have one format there." in html


def test_one_method_for_all_says_what_hardware_it_needs_and_a_failed_lane_nothing():
    html = shown(lane(("fp8", "both")), FULL)
    assert "Needs a GPU since Ada or Hopper." in html and "In engines: vLLM, SGLang and TensorRT-LLM" in html
    assert "<small>since 0.4.3, as of 0.33.0</small>" in html
    assert "<small>in no release, as of 0.33.0</small>" in shown(lane(("kvarn", "both")), FULL)
    assert "<small>first version not known, as of 0c1e57098" in shown(lane(("bf16", "both")), FULL)
    assert "No deployment" in shown(lane(("svdq", "both")), FULL)
    failed = lane(("fp8", "both")).model_copy(update={"status": "failed"})
    assert "vllm" not in shown(failed, FULL)


def test_a_lane_that_leaves_windows_alone_is_no_engines_flags_but_vllms():
    windowed = (*FULL[:15], *[kind.model_copy(update={"kind": "sliding", "window": 32}) for kind in FULL[15:]])
    assert flags(lane(("fp8", "both")), windowed) == [
        "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window"
    ]
    html = shown(lane(("q8_0", "both")), windowed)
    assert "llama.cpp cannot have this lane" in html and "some tensors or layers as they are" in html


def test_a_lane_of_rules_keeps_what_its_formats_need_and_do_otherwise():
    html = shown(lane(("fp8", "both"), layers=list(range(1, 30))), FULL)
    assert "Needs a GPU since Ada or Hopper." in html.split("SGLang cannot")[0]
    html = shown(lane(("q5_1", "keys"), ("q4_1", "values")), FULL)
    assert html.count("Not the same: ") == 1


def test_how_the_engine_reads_a_prompt_is_said_where_the_lane_read_it_otherwise():
    record = lane(("q8_0", "keys"), ("q4_0", "values"))
    html = shown(record, FULL)
    assert "llama.cpp reads a prompt through its cache, 512 tokens at a time" in html
    assert "its prompt in full precision; with prefill = deployed it reads as that engine does." in html
    for prefill in ("deployed", {"chunk": 512, "own_chunk": "stored", "fit": "prompt"}):
        assert "through its cache" not in shown(record.model_copy(update={"prefill": prefill}), FULL)
    html = shown(lane(("fp8", "both")), FULL)
    assert html.count("through its cache") == 1 and "vLLM reads a prompt" in html
    assert "through its cache" not in shown(lane(("kivi", "both")), FULL)
    html = shown(lane(("exl3", "both")), FULL)
    assert "own chunk as computed" in html and "through its cache" not in html, (
        "it has exceptions, and says them itself"
    )
