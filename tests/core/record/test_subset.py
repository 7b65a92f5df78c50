"""Some lanes of a run in the form of a run: which are drawn of many, and what of the run stays."""

from kvq_core.record.subset import best, drawn_of, part_of
from kvq_core.spec import parse_spec
from tests.support.ui_record_factory import make_run


def costing(*costs: tuple[float, float]):
    """A run whose lanes have these sizes and mean KLDs."""
    record, arrays = make_run(len(costs), scored=9, tokens=40)
    for lane, (size, kld) in zip(record.lanes, costs, strict=True):
        lane.memory.kv_ratio, lane.metrics.kld_mean = size, kld
    return record, arrays


def test_a_run_of_eight_lanes_is_drawn_whole():
    record, arrays = make_run(8, scored=9, tokens=40)
    assert drawn_of(record, arrays) == (record, arrays)


def test_lanes_no_other_beats_come_first_and_then_those_of_the_least_kld():
    beaten = [(0.9, 0.01), (0.9, 0.02), (0.9, 0.03), (0.9, 0.04), (0.9, 0.05), (0.9, 0.06), (0.9, 0.07)]
    record, _ = costing(*beaten, (0.1, 2.0), (0.2, 0.5), (0.5, 0.005), (0.5, 0.2))
    assert best(record) == [0, 1, 2, 3, 4, 7, 8, 9]  # the small lane of large KLD is one that nothing beats


def test_lanes_that_failed_or_answered_no_numbers_come_last():
    record, _ = costing(*[(0.5, 0.1 + i / 100) for i in range(10)])
    record.lanes[0].metrics = None
    record.lanes[1].metrics.kld_mean = float("nan")
    assert best(record) == list(range(2, 10))


def test_a_part_has_the_arrays_of_its_lanes_under_their_new_numbers():
    record, arrays = make_run(20, scored=9, tokens=40)
    part, own = part_of(record, arrays, [3, 17])
    assert [lane.label for lane in part.lanes] == ["Lane 3", "Lane 17"] and part.id == record.id
    assert [lane.label for lane in parse_spec(part.spec).lanes] == ["Lane 3", "Lane 17"]
    assert own["lane/1/kld"] is arrays["lane/17/kld"] and own["lane/noise/kld"] is arrays["lane/noise/kld"]
    assert {name.split("/")[1] for name in own if name.startswith("lane/")} == {"0", "1", "noise"}
    assert own["reference/nll"] is arrays["reference/nll"] and len(record.lanes) == 20
