"""What the documents say of many lanes and of prompts read through caches: each row from its own part of the JSON."""

import pytest

from benchmarks import by_lane
from benchmarks.many_lanes import MOST, TARGETS
from benchmarks.measured import table
from benchmarks.prefill import compared

PEAK = {"prompt_tokens": 500, "new_tokens": 8, "lanes": 8, "estimated_mb": 200.0, "measured_mb": 150.0, "peak_gb": 1.5}
LANES = {
    "model": "One-1B-Instruct",
    "measured": "CPU seconds of one thread",
    "prompt_tokens": 1000,
    "targets": TARGETS,
    "most": MOST,
    "forced": {"new_tokens": 64, "ratio": 1.75},
    "counts": {"new_tokens": 16, "ratio": {"16": 1.5, "64": 6.25}, "arrays_mb": {"8": 9.0, "16": 18.0, "64": 40.0}},
}


def shown(monkeypatch: pytest.MonkeyPatch, part, **files: object) -> str:
    monkeypatch.setattr(by_lane, "figures", lambda name: files.get(name))
    found = part()
    return found if isinstance(found, str) else table("What | Measured | Target", *found)


def test_what_was_measured_has_a_row_and_what_was_not_has_none(monkeypatch) -> None:
    text = shown(monkeypatch, by_lane.lanes_part, many_lanes={"one": LANES})
    assert "1.75 times | 1.9 times" in text and "6.25 times; arrays of 40 MB | 6.9 times; 64 MB" in text
    assert "second floor" not in text and "formula" not in text and "CPU seconds of one thread" in text
    more = LANES | {"memory": {"peaks": [PEAK]}, "longest": PEAK, "floors": {"ratio": 0.5}}
    text = shown(monkeypatch, by_lane.lanes_part, many_lanes={"one": more})
    assert "0.75 (150 MB) | under 1.2" in text and "508 tokens | 1.5 GB" in text and "0.50 generates" in text
    assert len(shown(monkeypatch, by_lane.lane_costs, many_lanes={"one": more}).splitlines()) == 4
    deploy = {"lanes": 30, "read_through": 26, "ratio": {"full": 8.5, "deployed": 0.31}}
    text = shown(monkeypatch, by_lane.lanes_part, many_lanes={"one": LANES | {"deploy": deploy}})
    assert "the 30 lanes" in text and "8.50 generates | 9 generates" in text and "0.31 generates | 0.4" in text
    assert "Not measured yet" in shown(monkeypatch, by_lane.lanes_part)


def test_a_methods_loss_is_told_over_all_texts_and_by_text(monkeypatch) -> None:
    each = compared([{"kld": 0.1}, {"kld": 0.3}], [{"kld": 0.2}, {"kld": 0.3}])
    assert each["more"] == pytest.approx(0.25) and each["more_by_text"] == pytest.approx([1.0, 0.0])
    found = {"model": "One", "prompt_tokens": 1024, "chunk": 256, "later_tokens": 64, "texts": ["a", "b"]}
    text = shown(monkeypatch, by_lane.prefill_part, prefill={"one": found | {"methods": {"KIVI": each}}})
    assert "| KIVI | 0.200 | 0.250 | +25% | +100%, +0% |" in text and "over 63 positions" in text
