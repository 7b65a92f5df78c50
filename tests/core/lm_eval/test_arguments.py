"""Lanes of lm-eval's arguments: those of the papers' tables are all possible."""

from typing import Any

import pytest

from benchmarks.papers import papers
from kvq_core.errors import SpecError
from kvq_core.lm_eval.arguments import read_lane
from kvq_core.spec import Lane

ROWS = [
    pytest.param(lane, id=f"{each['paper']} {each['where']}: {label}")
    for each in papers()["tables"]
    for label, lane in each["lanes"].items()
]


@pytest.mark.parametrize("lane", ROWS)
def test_every_row_of_a_papers_table_is_a_lane(lane: dict[str, Any]) -> None:
    read = read_lane(**lane)
    assert read.every_rule[0].method == lane["method"]
    assert read.tensors == lane.get("tensors", "both")
    for name, value in lane.items():
        if name not in ("method", *Lane.model_fields):
            held = getattr(read.build(), name)
            if isinstance(value, dict):
                assert {key: getattr(held, key) for key in value} == value
            else:
                assert held == (tuple(value) if isinstance(value, list) else value)


def test_fields_knobs_and_chunks_are_told_apart() -> None:
    lane = read_lane(method="nvfp4", four_over_six=True, tensors="keys", prefill_chunk=64, own_chunk="stored")
    assert (lane.knobs, lane.tensors) == ({"four_over_six": True}, "keys")
    assert lane.chunks is not None
    assert (lane.chunks.chunk, lane.chunks.own_chunk) == (64, "stored")
    assert read_lane().method == "fp16"
    rules = [{"method": "q8_0", "tensors": "keys"}, {"method": "q4_0", "tensors": "values"}]
    assert [rule.method for rule in read_lane(rules=rules).every_rule] == ["q8_0", "q4_0"]
    with pytest.raises(SpecError, match="prefill_chunks"):
        read_lane(method="kivi", prefill_chunks=64)
