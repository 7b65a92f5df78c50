"""What is selected, and what a click makes of it."""

import json

import pytest

from kvq_core.analysis.worst import PURE_SINK
from kvq_core.pipeline.examples import packaged_store
from tests.support.ui_record_factory import make_run
from ui.panels.tour import shipped_ids
from ui.selection import Selection, apply_pick, parts_picked, read_selection, selection_html, start

RECORD, ARRAYS = make_run(lanes=2)  # 30 layers, 9 query heads on 3 KV heads, 64 tokens
PROMPT = len(RECORD.reference.prompt_token_ids)
NOW = Selection(layer=3, head=4, token=9)


@pytest.mark.parametrize(
    "click, found",
    [
        ({"layer": 7}, Selection(7, 4, 9)),
        ({"step": 0}, Selection(3, 4, 1)),  # a scored position predicts the token after it
        ({"token": 0}, Selection(3, 4, 0)),
        ({"head": 8, "layer": 29}, Selection(29, 8, 9)),
        ({"kv_head": 1}, NOW),  # the KV head this query head reads: the query head stays
        ({"kv_head": 2}, Selection(3, 6, 9)),  # another: its first query head
        ({"layer": 99, "token": -5, "head": 1e9}, Selection(29, 8, 0)),
        ({"layer": 6.6}, Selection(7, 4, 9)),
        ({"layer": "7", "token": None, "head": True}, Selection(3, 1, 9)),
        ({"position": PROMPT + 20}, Selection(3, 4, 20)),  # of the cache: after the prompt comes the answer
        ({"position": PROMPT - 1, "layer": 5}, Selection(5, 4, 9)),  # a prompt token is no token of the answer
        ({"at": 12.5}, NOW),
    ],
)
def test_a_click_moves_only_what_it_names(click, found):
    assert apply_pick(json.dumps(click), NOW, RECORD) == found


@pytest.mark.parametrize("raw", ["", None, "{", "[1]", "1", "null", '{"layer": NaN}', '{"step": Infinity}', "[" * 5000])
def test_what_is_no_click_changes_nothing(raw):
    assert apply_pick(raw, NOW, RECORD) == NOW


@pytest.mark.parametrize(
    "values, found", [((None, "x", 3), (0, 0, 3)), ((-1, 99, 1e12), (0, 8, 63)), ((2.4, 2.6, float("nan")), (2, 3, 0))]
)
def test_controls_of_another_run_are_brought_within_this_one(values, found):
    assert read_selection(RECORD, *values) == Selection(*found)


def test_a_run_opens_where_there_is_most_to_see():
    record, arrays = make_run(lanes=2)
    arrays["lane/1/kld"][40] = 50.0
    arrays["lane/1/attention_kl"][:, 17, 5] = 90.0
    assert start(record, arrays) == Selection(17, 5, 41)
    for lane in (0, 1):
        del arrays[f"lane/{lane}/kld"], arrays[f"lane/{lane}/attention_kl"]
        arrays[f"lane/{lane}/delta_mean"][8, 2] = 90.0
    assert start(record, arrays) == Selection(8, 2, 0)
    assert start(record, {}) == Selection(0, 0, 0)


def test_a_run_opens_at_no_head_that_reads_the_first_tokens_alone():
    record, arrays = make_run(lanes=2)
    arrays["lane/0/attention_kl"][:, 17, 5], arrays["lane/0/attention_kl"][:, 4, 1] = 90.0, 80.0
    arrays["reference/sink_mass"][:, 17, 5] = 0.97
    assert start(record, arrays) == Selection(4, 1, start(record, arrays).token)
    arrays["reference/sink_mass"][:] = 0.99  # nothing else to look at
    assert (start(record, arrays).layer, start(record, arrays).head) == (17, 5)


def test_a_run_opens_at_what_it_captured():
    record, arrays = make_run(lanes=2)
    arrays["lane/0/attention_kl"][:, 17, 5] = 90.0
    record.capture.layers, record.capture.heads = [3, 12], [0, 6]
    arrays["lane/1/attention_kl"][:, 12, 6] = 50.0
    assert (start(record, arrays).layer, start(record, arrays).head) == (12, 6)


@pytest.mark.parametrize("run", shipped_ids().values(), ids=shipped_ids())
def test_a_shipped_run_opens_at_something_to_see(run):
    """Its maps are those of the head selected, and its lanes changed that head's attention."""
    record, arrays = packaged_store().load(run)
    at = start(record, arrays)
    assert at.layer in record.capture.layers and at.head in record.capture.heads
    assert arrays["reference/sink_mass"][:, at.layer, at.head].float().mean() < PURE_SINK
    changed = [arrays[f"lane/{i}/attention_kl"][:, at.layer, at.head].mean() for i in range(len(record.lanes))]
    assert max(changed) > 0.01


def test_the_selection_is_said_with_the_head_it_reads_and_the_token_s_probability():
    record, arrays = make_run(lanes=1, text="<b>")
    arrays["reference/nll"][8] = 0.6931472
    words = selection_html(record, arrays, NOW)
    assert "query head <b>4</b> of KV head <b>1</b>, one of 3 that read it" in words
    assert "“&lt;b&gt;”" in words and "gives 50\xa0%" in words
    assert "not scored" in selection_html(record, arrays, Selection(0, 0, 0))


def test_a_click_says_what_it_picks_and_when():
    assert parts_picked('{"layer": 3, "kv_head": 1, "at": 12.5}') == {"layer": 12.5, "head": 12.5}
    assert parts_picked('{"step": 4, "at": 2}') == parts_picked('{"position": 900, "at": 2}') == {"token": 2}
    assert parts_picked("[1]") == parts_picked("nan") == parts_picked(None) == {}
