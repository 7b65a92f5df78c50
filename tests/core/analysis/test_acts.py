"""What may help where one looks: lanes that change one thing there, and what came of them, told with their chance."""

import numpy as np
import pytest
import torch

from kvq_core.analysis.acts import LookedPlace, acts, effect, hottest_span, widened
from kvq_core.analysis.plans import lane_of, shape_of
from tests.support.ui_record_factory import LAYERS, make_run
from ui.html.acts import offers_html
from ui.html.looks import look_html, whole_layer

PLACE = LookedPlace(layer=5, head=4, kv_head=1)


@pytest.fixture(scope="module")
def run():
    return make_run(lanes=3, labels=("KIVI", "SQuat", "Tokens"))


def named(found) -> dict:
    return {act.name: act for act in found}


def test_what_is_offered_changes_one_thing_at_the_place_alone(run):
    record, arrays = run
    own = lane_of(record, 0)
    found = named(acts(record, arrays, 0, PLACE))
    assert set(found) - {"layer-other"} == {"layer-fp16", "layer-wide", "span", "sinks", "center"}
    first, *rest = found["layer-fp16"].lane.every_rule
    assert (first.method, first.layers, tuple(rest)) == ("fp16", (5,), own.every_rule)
    first, *rest = found["layer-wide"].lane.every_rule
    assert (first.layers, first.knobs["bits"], tuple(rest)) == ((5,), 8, own.every_rule)
    (span,) = found["span"].lane.every_rule[0].spans
    assert span == hottest_span(record, arrays, 0, PLACE) and found["span"].lane.every_rule[1:] == own.every_rule
    assert found["sinks"].lane.rule.windows()[0].sink == 4 and own.windows()[0].sink == 0
    assert found["center"].lane.center == "mean"
    assert all(act.because and act.lane.label.startswith("KIVI + ") and act.lane != own for act in found.values())


@pytest.mark.parametrize(
    ("factor", "bias", "offered"), [(100.0, True, True), (0.01, True, False), (100.0, False, False)]
)
def test_what_a_mended_file_would_do_is_offered_where_biased_keys_carry_constants(run, factor, bias, offered):
    record, arrays = run
    mean, rest = np.full((LAYERS, 1), factor, np.float32), np.ones((LAYERS, 1, 4), np.float32)
    own = {**arrays, "mean/key_pre": mean, "centred/key_pre": rest}
    if not bias:
        own.pop("pairs/key_bias")
    found = named(acts(record, own, 2, PLACE))
    assert ("mended" in found) == offered
    assert "mended" not in named(acts(record, own, 0, PLACE))  # KIVI's scales are by channel: nothing is gained
    if offered:
        rule = found["mended"].lane.rule
        assert (rule.center, rule.fold) == ("slow", "keys")


def test_nothing_is_offered_in_a_layer_with_a_window(run):
    """None of whose errors was looked at."""
    record, arrays = run
    kinds = [kind.model_dump() for kind in shape_of(record).kinds]
    kinds[5] |= {"kind": "sliding", "window": 64}
    windowed = record.model_copy(update={"environment": record.environment.model_copy(update={"kinds": kinds})})
    assert set(named(acts(windowed, arrays, 0, PLACE))) == {"span", "sinks", "center"}
    assert "layer-fp16" in named(acts(windowed, arrays, 0, LookedPlace(layer=4, head=4, kv_head=1)))


def test_another_method_is_offered_where_its_lane_loses_less_in_that_layer(run):
    record, arrays = run
    lost = [float(arrays[f"lane/{at}/delta_mean"][5].mean()) for at in (0, 1, 2)]
    best, worst = int(np.argmin(lost)), int(np.argmax(lost))
    assert "layer-other" not in named(acts(record, arrays, best, PLACE))
    act = named(acts(record, arrays, worst, PLACE))["layer-other"]
    first = act.lane.every_rule[0]
    assert (first.method, first.layers) == (lane_of(record, best).method, (5,))
    assert record.lanes[best].label in act.says


def test_tokens_that_were_clicked_are_protected_and_a_channels_head_is_turned(run):
    record, arrays = run
    clicked = named(acts(record, arrays, 0, LookedPlace(5, 4, 1, span=(40, 41), channel=7)))
    assert clicked["span"].lane.every_rule[0].spans == ((39, 43),) and "pointed" in clicked["span"].because
    assert clicked["rotate"].lane.rotate == "hadamard" and "channel 7" in clicked["rotate"].because
    prompt = len(record.reference.prompt_token_ids)
    assert widened((prompt - 1, prompt), prompt) == (prompt - 2, prompt)
    assert widened((0, 1), prompt) == (0, 4) and widened((prompt, prompt + 3), prompt) is None


def test_the_hottest_tokens_are_the_prompts_alone_and_of_a_head_that_was_kept(run):
    record, arrays = run
    arrays = {**arrays, "lane/0/delta_map": torch.zeros_like(arrays["lane/0/delta_map"])}
    arrays["lane/0/delta_map"][5, 4, :, 30] = 9
    arrays["lane/0/delta_map"][5, 4, :, -1] = 100  # of the answer
    start, end = hottest_span(record, arrays, 0, PLACE)
    edges = record.capture.position_edges
    assert start <= edges[30] and edges[31] <= end
    kept = record.capture.model_copy(update={"layers": [0]})
    assert hottest_span(record.model_copy(update={"capture": kept}), arrays, 0, PLACE) is None


def test_a_lane_that_the_run_has_is_not_offered_again_and_fp16_not_at_all(run):
    record, arrays = run
    offered = named(acts(record, arrays, 0, PLACE))["layer-fp16"].lane
    lanes = [*record.spec["lanes"], {**offered.model_dump(mode="json"), "label": "tried"}]
    more = record.model_copy(
        update={"spec": {**record.spec, "lanes": lanes}, "lanes": [*record.lanes, record.lanes[0]]}
    )
    assert "layer-fp16" not in named(acts(more, arrays, 0, PLACE))
    assert "layer-fp16" in named(acts(more, arrays, 0, LookedPlace(6, 4, 1)))
    plain = [{"method": "fp16", "label": "fp16"}]
    nothing = record.model_copy(update={"spec": {**record.spec, "lanes": plain}, "lanes": record.lanes[:1]})
    assert acts(nothing, arrays, 0, PLACE) == ()
    assert all(act.lane.every_rule[0].layers != (LAYERS,) for act in acts(record, arrays, 0, PLACE))


def test_what_came_of_it_is_the_paired_difference_with_its_chance(run):
    record, arrays = run
    klds = [arrays[f"lane/{at}/kld"].double() for at in (0, 1)]
    found = effect(record, arrays, 0, 1)
    differs = klds[0] - klds[1]
    assert found.gain == pytest.approx(differs.mean().item()) == pytest.approx(found.before - found.after)
    assert found.se == pytest.approx((differs.std() / len(differs) ** 0.5).item())
    assert found.sure == (abs(found.gain) > 2 * found.se)
    shorter = {**arrays, "lane/1/kld": arrays["lane/1/kld"][:-1]}
    assert effect(record, shorter, 0, 1) is None


def test_a_layer_that_has_a_rule_of_its_own_is_offered_in_fp16_too(run):
    record, arrays = run
    shape = shape_of(record)
    rules = [{"method": "per_token", "knobs": {"bits": 4}, "layers": [PLACE.layer]}, {"method": "kivi"}]
    spec = {**record.spec, "lanes": [{"label": "two", "rules": rules}, *record.spec["lanes"][1:]]}
    changed = record.model_copy(update={"spec": spec})
    found = {act.name: act.lane for act in acts(changed, arrays, 0, PLACE)}
    assert {"layer-fp16", "layer-wide"} <= found.keys()
    stored = {layer for a in found["layer-fp16"].plan(shape) for layer in a.layers}
    assert stored == set(range(shape.layers)) - {PLACE.layer}
    (wide,) = {a.rule.knobs["bits"] for a in found["layer-wide"].plan(shape) if PLACE.layer in a.layers}
    assert wide == 8


def test_nothing_is_offered_nor_looked_at_where_nothing_was_scored():
    record, arrays = make_run(lanes=2)
    answer = record.reference
    assert "data-act=" in look_html(record, arrays, 1, 0, whole_layer(1), False)
    one = answer.model_copy(update={"token_ids": answer.token_ids[:1], "tokens": answer.tokens[:1]})
    record = record.model_copy(update={"reference": one})
    assert acts(record, arrays, 0, PLACE) == ()
    assert "nothing was scored; ask for 2 tokens or more." in offers_html(record, 0, 5, ())
    assert look_html(record, arrays, 1, 0, whole_layer(1), False) == ""
