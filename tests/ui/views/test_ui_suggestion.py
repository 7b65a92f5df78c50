"""The button under a verdict adds the lane it names; and two texts compared."""

from kvq_core.analysis.explain import explain
from kvq_core.spec import MAX_LANES, Lane
from tests.support.ui_record_factory import make_run
from ui.form.lanes import add_lane, append_lane, from_spec, to_spec
from ui.html.diff import diff, text_of, top_lists
from ui.selection import Selection
from ui.views.verdicts import compute


def damaged():
    """A run whose first lane has nearly all of its key error in two channels of one head."""
    record, arrays = make_run(lanes=2)
    for name in ("key_error", "key_channel_error", "key_error_energy"):
        arrays[f"lane/0/{name}"] *= 0.01
    arrays["lane/0/key_error"][12, 1] = 3.0
    arrays["lane/0/key_channel_error"][12, 1, [14, 46]] = 500.0
    arrays["reference/key_channel_energy"].fill_(1.0)
    arrays["reference/key_channel_energy"][12, 1, [14, 46]] = 90.0
    return record, arrays


def test_a_button_offers_the_lane_the_explanation_names():
    record, arrays = damaged()
    offered = {i: explain(record, arrays, i) for i in range(2)}
    html = compute(record, arrays, Selection()).html["verdicts"]
    named = {i: told.suggestion for i, told in offered.items() if told.suggestion is not None}
    assert named  # planted damage asks for another lane
    for i, lane in named.items():
        assert f'data-suggest="{i}"' in html and f"Add lane: {lane.label}" in html and offered[i].because in html
    assert html.count("data-suggest=") == len(named)


def test_the_suggested_lane_is_added_once_and_can_run():
    record, arrays = damaged()
    lane = next(told.suggestion for told in (explain(record, arrays, i) for i in range(2)) if told.suggestion)
    form = from_spec(tuple(Lane.model_validate(l) for l in record.spec["lanes"]))  # noqa: E741
    once = append_lane(form, lane)
    assert [entry["label"] for entry in once] == [*(entry["label"] for entry in form), lane.label]
    assert Lane.model_validate(to_spec(once)[-1]).build() == lane.build()
    twice = append_lane(once, lane)
    assert len({entry["label"] for entry in twice}) == len(twice) == len(once) + 1  # labels differ
    assert len({entry["uid"] for entry in twice}) == len(twice)


def test_a_full_form_takes_no_further_lane():
    form = []
    for _ in range(MAX_LANES):
        form = add_lane(form)
    assert append_lane(form, Lane(label="x", method="kivi")) is form


def test_a_diff_turns_the_first_text_into_the_second():
    one, two = (
        ("A", ["The ", "cat ", "<b>"], [(1,), (2,), (3,)]),
        ("B & C", ["The ", "dog ", "<b>", "!"], [(1,), (5,), (3,), (6,)]),
    )
    html = diff(one, two)
    assert "The <del>cat </del><ins>dog </ins>&lt;b&gt;<ins>!</ins>" in html
    assert "A → B &amp; C: 2 of 4 tokens in common" in html
    assert "<del>" not in diff(one, one) and "3 of 3 tokens" in diff(one, one)


def test_tokens_that_read_alike_but_differ_are_marked():
    html = diff(("A", ["a b"], [(1,)]), ("B", ["a", " b"], [(2,), (3,)]))
    assert html.count("<ins>") == 2 and "<del>a b</del>" in html and "0 of 2 tokens" in html


def test_the_reference_is_a_text_like_any_other():
    record, _ = make_run(lanes=1)
    assert text_of(record, -1)[0] == "Full precision" and text_of(record, 0) == ("Lane 0", *text_of(record, 0)[1:])
    assert [id for (id,) in text_of(record, -1)[2]] == record.reference.token_ids


def test_top_lists_show_both_rows_and_the_token_that_was_followed():
    record, arrays = make_run(lanes=1)
    record.reference.token_ids[6] = int(arrays["reference/topk_ids"][5, 2])
    record.vocabulary = {i: f"<w{i}>" for i in range(60)}
    arrays["lane/0/kld"][5] = 0.25
    html = top_lists(record, arrays, 0, 6)
    assert "Token 6" in html and "KLD 0.250 nats" in html and html.count("<li") == 10
    assert html.count("class='followed'") >= 1 and "<w" not in html and "&lt;w" in html
    assert "no lane is scored on it" in top_lists(record, arrays, 0, 0)
    del arrays["lane/0/topk_ids"]
    assert "Not captured" in top_lists(record, arrays, 0, 6)


def test_ways_to_use_a_centred_lane_elsewhere_say_that_they_do_not_centre():
    record, arrays = make_run(lanes=3)  # the third is per token
    assert "not centred" not in compute(record, arrays, Selection()).html["verdicts"]
    record.lanes[2].center = "mean_after_rope"
    html = compute(record, arrays, Selection()).html["verdicts"]
    assert html.count("Keys are stored as they are, not centred.") == 1 + 1  # transformers and llama.cpp
    assert "--kv-mean-center" not in html, "what to type is no answer of one prompt"


def test_the_page_says_what_drafts_are_and_that_an_old_run_has_none():
    record, arrays = make_run()
    assert (
        "drafted tokens that the full-precision cache would keep"
        in compute(record, arrays, Selection()).html["verdicts"]
    )
    for lane in (record.noise_floor, *record.lanes):
        lane.metrics.acceptance = lane.metrics.tokens_a_step = None
    html = compute(record, arrays, Selection()).html["verdicts"]
    assert "not measured by the version of this run" in html and "drafted tokens that" not in html
