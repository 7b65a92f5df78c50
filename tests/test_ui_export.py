"""Every view as files: each number its figures show, with what it is and its unit."""

import csv
import io
import json

import gradio as gr
import numpy as np
import plotly.graph_objects as go
import pytest

from tests.ui_record_factory import make_run
from ui.export import COLUMNS, figures_of, points, view_csv, view_json
from ui.panels.view import Drawn
from ui.panels.views import TABS
from ui.selection import Selection

AT = Selection(layer=3, head=4, token=9)


@pytest.fixture(scope="module")
def drawn() -> dict[str, tuple]:
    """Record and what each view with figures draws of a run with every array, its pickers as they first stand."""
    record, arrays = make_run(lanes=3)
    with gr.Blocks():
        views = [create() for _, create in TABS]
    found = {view.name: view.compute(record, arrays, AT, *(p.value for p in view.pickers)) for view in views}
    return {name: (record, page) for name, page in found.items()}


def rows_of(record, name: str, page: Drawn) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(view_csv(record, AT, name, page))))


@pytest.mark.parametrize("name", ["texts", "damage", "rate", "storage", "spectra", "subspace"])
def test_every_figure_of_a_view_is_in_its_csv_with_units(drawn, name):
    record, page = drawn[name]
    rows = rows_of(record, name, page)
    figures = dict(figures_of(page))
    assert figures and {row["figure"] for row in rows} == set(figures)
    for row in rows:
        assert row["x_is"] or row["y_is"], row
        assert row["value"] == "" or row["value_is"], row
        float(row["value"] or 0)
    for title, figure in figures.items():
        own = [row for row in rows if row["figure"] == title]
        assert len(own) == sum(_size(trace) for trace in figure.data), title


def _size(trace) -> int:
    if trace.type == "heatmap":
        return np.asarray(trace.z).size
    if trace.x is None or trace.y is None:
        return 0
    return min(
        len(axis[0]) if len(axis) == 2 and not np.isscalar(axis[0]) else len(axis) for axis in (trace.x, trace.y)
    )


@pytest.mark.parametrize("name", ["verdicts", "texts", "damage", "rate", "storage", "spectra", "subspace"])
def test_the_json_says_the_same_as_the_csv(drawn, name):
    record, page = drawn[name]
    data = json.loads(view_json(record, AT, name, page))
    assert (data["run"], data["view"], data["says"]) == (record.id, name, page.words)
    assert data["selection"] == {"layer": 3, "head": 4, "token": 9} and data["columns"] == list(COLUMNS[1:])
    assert sum(map(len, data["figures"].values())) == len(rows_of(record, name, page))
    assert set(data["figures"]) | set(data["absent"]) == set(page.figures)


def test_values_are_those_of_the_record(drawn):
    record, arrays = make_run(lanes=3)
    _, page = drawn["damage"]
    grid = [row for row in rows_of(record, "damage", page) if row["figure"] == "grid-key"]
    errors = 100 * arrays["lane/1/key_error"].numpy()
    found = np.array([float(row["value"]) for row in grid if row["series"] == "Lane 1"])
    assert found.size == errors.size and np.allclose(np.sort(found), np.sort(errors.ravel()), atol=100 / 255)
    assert {row["value_is"] for row in grid} == {"‖ΔK‖/‖K‖, %"} or all("%" in row["value_is"] for row in grid)


def test_a_label_that_a_spreadsheet_would_run_is_quoted():
    record, _ = make_run(lanes=1)
    figure = go.Figure(go.Scatter(x=["=1+1"], y=[2.0], name="@SUM(A1)"), {"xaxis": {"title": "lane"}})
    [row] = rows_of(record, "rate", Drawn("", {"one": figure}))
    assert row["series"] == "'@SUM(A1)" and row["x"] == "'=1+1" and row["y"] == "2.0"


def test_pooled_heatmaps_are_scaled_back():
    figure = go.Figure(go.Heatmap(z=np.array([[0, 127]], dtype=np.uint8), name="a"))
    figure.update_layout(meta={"scale": 0.5})
    assert [row[3] for row in points(figure)] == [0.0, 63.5]
