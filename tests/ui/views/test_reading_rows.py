"""What a token reads, taken away as numbers: attention on the words, and the caches as they stood."""

import csv
import io

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvq_core.analysis.replay import movement
from kvq_core.pipeline.examples import packaged_store
from ui.html.reading import reading_html
from ui.panels.tour import shipped_ids
from ui.selection import Selection
from ui.views.attention import compute
from ui.views.export import COLUMNS, view_csv, view_json, view_parquet

SHIPPED = packaged_store().load(shipped_ids()["five-ideas"])


def selected() -> Selection:
    info = SHIPPED[0].capture
    return Selection(info.layers[0], info.heads[0], info.attention_steps[3] + 1)


def lines(name: str, at: Selection) -> list[dict[str, str]]:
    only = compute(*SHIPPED, at).only(name)
    return list(csv.DictReader(io.StringIO(view_csv(SHIPPED[0], at, "attention", only))))


def test_the_words_are_taken_with_what_the_token_reads_of_each():
    record, at = SHIPPED[0], selected()
    found = lines("words", at)
    assert {line["figure"] for line in found} == {"words"} and list(found[0]) == list(COLUMNS)
    by_lane = {name: [line for line in found if line["series"] == name] for name in {line["series"] for line in found}}
    assert set(by_lane) == {"Full precision", *(lane.label for lane in record.lanes)}
    for own in by_lane.values():
        assert sum(float(line["value"]) for line in own) == pytest.approx(1, abs=0.05), "shares of the attention"
    said = "".join(line["y"] for line in by_lane["Full precision"])
    assert "tide mill" in said and found[0]["value_is"] == "share of the attention"
    edges = [int(line["x"]) for line in by_lane["Full precision"]]
    assert edges[-1] <= len(record.reference.prompt_token_ids) + at.step


@pytest.mark.slow
def test_the_caches_are_taken_as_they_stood_when_the_token_was_chosen():
    record, arrays = SHIPPED
    at = selected()
    found = lines("replay", at)
    for index, lane in enumerate(record.lanes):
        for kind in ("key", "value"):
            own = [float(line["value"]) for line in found if line["series"] == f"{lane.label}, {kind}s"]
            assert np.allclose(own, movement(record, arrays, index, kind).at(at.step), atol=1e-3)
    assert {line["y"] for line in found} == {str(at.token)}


@pytest.mark.slow
def test_all_formats_hold_both_and_a_layer_that_was_not_looked_at_has_no_words():
    record, at = SHIPPED[0], selected()
    drawn = compute(*SHIPPED, at)
    table = pq.read_table(io.BytesIO(view_parquet(record, at, "attention", drawn)))
    assert set(table["figure"].to_pylist()) == {"words", "replay"} and table.num_rows > 500
    assert '"words": [[' in view_json(record, at, "attention", drawn)
    assert drawn.only("nothing") is None and "words" in drawn.tables and len(drawn.tables) == 2
    other = next(layer for layer in range(record.environment.layers) if layer not in record.capture.layers)
    assert lines("words", Selection(other, at.head, at.token)) == []
    menus = [reading_html(*SHIPPED, layer, at.head) for layer in (at.layer, other)]
    assert [menu.count('data-take="csv"') for menu in menus] == [2, 1], "of the caches alone"
