"""The reference table and the README's: drawn from stored figures, and absent while there are none."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks import by_table
from benchmarks import table as stored
from kvq_core.cli.table_picture import picture
from kvq_core.record.store import open_store
from kvq_core.studies.cells import plan
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import stored_study, study
from tests.support.study_models import study_data, write_model

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Of a study on a tiny model, six of whose prompts are done, and then all."""
    lanes = [
        {"method": "per_token", "label": label, "knobs": {"bits": bits}}
        for label, bits in (("A & B", 4), ("4.5 bits: two", 2), ("4 + 64: three", 3))
    ]
    model = write_model(tmp_path_factory.mktemp("models") / "tiny")
    store = open_store(str(tmp_path_factory.mktemp("store")))
    planned = plan(parse_study(study_data(model, 6, lanes=lanes)))
    before = stored.parts(stored_study(planned, store))
    study(planned.spec, store)
    return before, stored.parts(stored_study(planned, store))


def show(monkeypatch, found: dict, labels: set[str] | None = None) -> None:
    """Have these figures stored, and a study of lanes of these ``labels`` or of theirs."""
    own = {line["label"] for part in found.values() for line in part["lanes"]} if labels is None else labels
    monkeypatch.setattr(by_table, "figures", lambda name: found)
    monkeypatch.setattr(by_table, "labels", lambda: own)


@pytest.mark.slow
def test_a_model_is_kept_once_all_its_cells_are_stored(parts):
    before, after = parts
    assert before == {}
    (part,) = after.values()
    assert part["prompts"] == 6 and [line["label"] for line in part["lanes"]] == [
        "A & B",
        "4.5 bits: two",
        "4 + 64: three",
    ]
    assert all(line["kld_low"] < line["kld_mean"] < line["kld_high"] for line in part["lanes"])


@pytest.mark.slow
def test_the_readme_has_a_picture_and_rows_only_of_what_is_stored(parts, monkeypatch):
    monkeypatch.setattr(by_table, "figures", lambda name: None)
    assert by_table.table_part() == "" and by_table.drawn() is None
    found = parts[1]
    (part,) = found.values()
    show(monkeypatch, found)
    told, svg = by_table.table_part(), by_table.drawn()
    assert told.startswith("## What was measured\n") and "](table.svg)" in told and "over 6 prompts" in told
    assert "Not computed again" not in told
    mean, low, high = (f"{part['lanes'][0][name]:.2g}" for name in ("kld_mean", "kld_low", "kld_high"))
    assert f"| {mean} ({low} to {high}) |" in told and "| matched bytes | two |" in told
    root = ET.fromstring(svg)
    assert len(root.findall(f"{SVG}circle")) == 3 + 1, "a dot a lane, and one in the legend"
    words = [each.text for each in root.findall(f"{SVG}text")]
    assert {"A & B", "two", "three", "Matched windows", part["title"]} <= set(words)


def test_dots_lie_within_their_intervals_on_the_axis():
    line = {
        "model": "M",
        "label": "a",
        "kld_mean": 0.01,
        "kld_low": 0.005,
        "kld_high": 0.02,
        "key_bits": 4,
        "value_bits": 2,
    }
    alone = {**line, "label": "b", "kld_low": None, "kld_high": None}
    failed = {"model": "M", "label": "c", "kld_mean": None}
    root = ET.fromstring(picture([line, alone, failed], "said"))
    dots = [float(each.get("cx")) for each in root.findall(f"{SVG}circle")][1:]
    (low, high, *_), ends = [
        [float(each.get(at)) for at in ("x1", "x2")]
        for each in root.findall(f"{SVG}line")
        if each.get("stroke") == "#0b62c4"
    ]
    assert low < dots[0] < high and ends == [dots[1]] * 2 and len(dots) == 2


def test_intervals_of_too_few_prompts_are_dashed_and_counted(monkeypatch):
    line = {"kld_mean": 0.01, "kld_low": 0.005, "kld_high": 0.02, "key_bits": 4, "value_bits": 2}
    lanes = [{**line, "label": "a"}, {**line, "label": "b", "kld_high": 5.0}]
    gone = {**line, "label": "gone"}
    show(monkeypatch, {"m": {"title": "M", "prompts": 12, "tokens": 48, "lanes": [*lanes, gone]}}, {"a", "b"})
    told = by_table.table_part()
    assert "gone" not in told and "Not computed again since results version" in told and ": M (version 7)." in told
    assert "1 of 2 intervals reach beyond 10 times the mean (dashed): of too few prompts." in told
    assert "Bytes are matched at 4.5 bits an element over these prompts." in told
    root = ET.fromstring(by_table.drawn())
    assert [each.get("stroke-dasharray") for each in root.findall(f"{SVG}line") if each.get("stroke") == "#0b62c4"] == [
        None,
        "2 3",
    ]
    assert "dashed: too few prompts" in [each.text for each in root.findall(f"{SVG}text")]


def lane(label: str, low: float, high: float) -> dict:
    return {
        "label": label,
        "kld_mean": (low + high) / 2,
        "kld_low": low,
        "kld_high": high,
        "key_bits": 4,
        "value_bits": 2,
    }


def test_the_readme_says_that_rankings_change_where_intervals_are_apart_on_both_models(monkeypatch):
    one, other = by_table.KNOWN[:2]

    def told(second: list[dict]) -> str:
        lanes = [lane(other, 0.3, 0.4), lane(one, 0.1, 0.2), lane("another", 0.1, 0.2)]
        parts = {"a": {"lanes": lanes, "title": "A"}, "b": {"lanes": second, "title": "B"}}
        show(monkeypatch, {model: {**part, "prompts": 12, "tokens": 48} for model, part in parts.items()})
        return by_table.results_part()

    swapped = told([lane(one, 0.7, 0.8), lane(other, 0.1, 0.2)])
    assert f"{one} loses less than {other} on A (0.15 against 0.35), and more on B (0.75 against 0.15)." in swapped
    rows = [row for row in swapped.splitlines() if row.startswith((f"| {one}", f"| {other}"))]
    assert rows == [f"| {one} | 3.0 | 0.15 (0.1 to 0.2) | 0.75 (0.7 to 0.8) |", rows[1]] and "another" not in swapped
    assert "Rankings" not in told([lane(one, 0.2, 0.8), lane(other, 0.1, 0.3)]), "their intervals overlap"
    assert "Rankings" not in told([lane(one, 0.1, 0.2), lane(other, 0.7, 0.8)]), "the same order"
