"""What the browser is given to brush an answer: small, escaped, and of every lane that was scored."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from kvq_core.record.files import deserialize
from tests.support.ui_record_factory import make_run
from ui.html.along import along_html
from ui.selection import Selection, start
from ui.views.attention import compute as attention
from ui.views.damage import compute

VIEW_BYTES = 400_000  # of data in a view, at most


def data_of(html: str) -> dict:
    found = re.search(r'<div id="along-data" hidden>(.*)</div>$', html, re.S)
    assert found
    return json.loads(unescape(found[1]))


def test_every_lane_that_was_scored_has_a_row_and_its_numbers():
    record, arrays = make_run(4, scored=20, tokens=60)
    record.lanes[1].status = "failed"
    html = along_html(record, arrays)
    assert re.findall(r'class="along-row lane-(\d)" data-of="(\d)"', html) == [("0", "0"), ("2", "2"), ("3", "3")]
    found = data_of(html)
    assert [lane["failed"] for lane in found["lanes"]] == [False, True, False, False]
    assert found["count"] == 21 and sum(tokens for _, tokens in found["pieces"]) == 21
    assert set(found["lanes"][0]["tops"]) == {str(int(s) + 1) for s in (arrays["lane/0/same_top"] == 0).nonzero()}


def test_text_of_prompts_and_models_is_text():
    evil = "</div><script>alert(1)</script>\u202e"
    record, arrays = make_run(1, scored=8, tokens=30, labels=(f"x{evil}",), text=evil)
    html = along_html(record, arrays)
    assert "<script" not in html and "\u202e" not in html and "\\u202e" not in html
    assert data_of(html)["pieces"][0][0] == "</div><script>alert(1)</script>\ufffd"


@pytest.mark.slow
def test_what_is_sent_stays_small_and_too_long_answers_say_so(monkeypatch):
    record, arrays = make_run(8, scored=500, tokens=900)
    monkeypatch.setattr("ui.html.along.MOST", 8 * 500)
    html = along_html(record, arrays)
    assert "along-data" in html and len(html) < VIEW_BYTES
    monkeypatch.setattr("ui.html.along.MOST", 8 * 500 - 1)
    html = along_html(record, arrays)
    assert "along-data" not in html and "up to 3,999 can be brushed" in html


@pytest.mark.slow
def test_a_view_with_maps_of_every_step_stays_within_its_data():
    record, arrays = make_run(8)
    for measure in ("relative", "score", "attention"):
        size = sum(len(figure) for figure in drawn(record, arrays, measure))
        assert size < VIEW_BYTES, (measure, size)


def drawn(record, arrays, measure):
    figures = compute(record, arrays, Selection(3, 4, 9), measure, False).figures
    return [figure.to_json() for figure in figures.values() if not isinstance(figure, str)]


def test_runs_without_scores_or_lanes_draw_nothing():
    record, arrays = make_run(2, scored=8, tokens=30)
    few = {name: of for name, of in arrays.items() if "delta" not in name and "bits" not in name and "topk" not in name}
    found = data_of(along_html(record, few))
    assert (
        found["lanes"][0]["where"] is None and found["lanes"][0]["key_bits"] == [] and found["lanes"][0]["tops"] == {}
    )
    assert along_html(record.model_copy(update={"lanes": []}), {}) == ""


@pytest.mark.parametrize(
    "folder", sorted((Path(__file__).parents[2] / "data").iterdir()), ids=lambda folder: folder.name
)
def test_old_runs_are_brushed_and_replayed_as_far_as_they_were_kept(folder):
    record, arrays = deserialize(lambda name: (folder / name).read_bytes(), folder.name)
    assert data_of(along_html(record, arrays))["count"] == len(record.reference.token_ids)
    assert 'id="reading"' in attention(record, arrays, start(record, arrays)).html["words-read"]
