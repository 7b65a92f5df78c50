"""Distortion against rate: the front, who is beaten in what, lanes that leave keys or values alone, no distortion."""

import re

from tests.support.ui_record_factory import make_run
from ui.figures.rate import beaten, distortion_rate, front, points
from ui.selection import Selection
from ui.words import damage, subspace
from ui.words.rate import rates


def test_the_front_holds_who_nobody_beats():
    found = [(0, 3.0, 0.2), (1, 3.0, 0.1), (2, 5.0, 0.15), (3, 4.0, 0.05), (4, 6.0, 0.04)]
    assert [index for index, *_ in front(found)] == [1, 3, 4]


def test_of_lanes_without_loss_the_axis_says_nothing_but_0():
    record, arrays = make_run()
    for lane in record.lanes:
        lane.metrics.flip_rate = 0.0
    assert distortion_rate(record, arrays, "flips").layout.yaxis.ticktext == ("0",)


def test_a_lane_that_leaves_keys_alone_is_no_point_of_key_error():
    record, arrays = make_run()
    memory = record.lanes[0].memory.model_copy(update={"key_bits_quantized": None})  # as its tensors or its knobs say
    lanes = [record.lanes[0].model_copy(update={"memory": memory}), *record.lanes[1:]]
    changed = record.model_copy(update={"lanes": lanes})
    assert [index for index, *_ in points(changed, arrays, "key")] == [1, 2]
    assert [index for index, *_ in points(changed, arrays, "kld")] == [0, 1, 2]
    symbols = [trace.marker.symbol for trace in distortion_rate(changed, arrays, "kld").data if trace.mode == "markers"]
    assert symbols == ["triangle-down", "circle", "circle"]
    for other in changed.lanes[1:]:
        other.metrics.key_rmse = 0.0
    for words in (damage(changed, arrays, Selection(1, 1, 5)), subspace(changed, arrays, 5)):
        assert not re.search(r"key error of Lane 0|keys are \S+ % off in Lane 0", words)
    alone = changed.model_copy(update={"lanes": changed.lanes[:1]})
    said = damage(alone, arrays, Selection(1, 1, 5))
    assert "keys" not in said and "key error" not in said and "values are" in said
    assert "Lane 0 leaves the keys alone" in rates(changed, arrays)


def test_lanes_of_equal_bits_are_not_beaten_in_both():
    found = [(0, 3.5, 0.1), (1, 3.5004, 0.2), (2, 4.0, 0.3), (3, 3.6, 0.1), (4, 3.0, 0.5)]
    assert beaten(found) == ([2], [1, 3])
    record, arrays = make_run(3)
    for lane, kld, bits in zip(record.lanes, (0.1, 0.2, 0.3), (3.5, 3.5, 4.0), strict=True):
        lane.metrics.kld_mean, lane.memory.key_bits, lane.memory.value_bits = kld, bits, bits
    said = rates(record, arrays)
    assert " nats). Beaten in both: Lane 2. Beaten in one of them, at an equal other: Lane 1." in said


def test_no_flips_are_drawn_at_0_and_told_as_0():
    record, arrays = make_run(2)
    record.lanes[0].metrics.flip_rate, record.lanes[1].metrics.flip_rate = 0.0, 1 / 63
    figure = distortion_rate(record, arrays, "flips")
    ticks = dict(zip(figure.layout.yaxis.ticktext, figure.layout.yaxis.tickvals, strict=True))
    none, one = (trace for trace in figure.data if trace.mode == "markers")
    assert none.y[0] == ticks["0"] < one.y[0] and min(at for name, at in ticks.items() if name != "0") > none.y[0]
    assert none.text == ("0",) and one.text == ("1.59",) and "bits: %{text}<" in none.hovertemplate
    record.lanes[0].metrics.flip_rate = 0.5
    assert "0" not in distortion_rate(record, arrays, "flips").layout.yaxis.ticktext
