"""Every view as files: each number its figures show, with what it is and its unit."""

import csv
import io
import json

import gradio as gr
import numpy as np
import plotly.graph_objects as go
import pytest

from kvq_core.analysis.context_growth import growths
from kvq_core.analysis.plans import shape_of
from kvq_core.pipeline.examples import packaged_store
from tests.support.growth_bits import effective_bits
from tests.support.ui_record_factory import make_run
from ui.figures.base import BLANK
from ui.html.numbers import size
from ui.selection import Selection
from ui.views.export import COLUMNS, figures_of, points, view_csv, view_json
from ui.views.tabs import TABS
from ui.views.verdicts import lane_figures
from ui.views.view import Drawing

AT = Selection(layer=3, head=4, token=9)


@pytest.fixture(scope="module")
def drawn() -> dict[str, tuple]:
    """Record and what each view with figures draws of a run with every array, its pickers as they first stand."""
    record, arrays = make_run(lanes=3)
    with gr.Blocks():
        views = [create() for _, create in TABS]
    found = {view.name: view.compute(record, arrays, AT, *(p.value for p in view.pickers)) for view in views}
    return {name: (record, page) for name, page in found.items()}


def rows_of(record, name: str, page: Drawing) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(view_csv(record, AT, name, page))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["texts", "damage", "rate", "storage", "spectra", "subspace"])
def test_every_figure_of_a_view_is_in_its_csv_with_units(drawn, name):
    record, page = drawn[name]
    rows = rows_of(record, name, page)
    figures = dict(figures_of(page))
    assert figures and {row["figure"] for row in rows} == set(figures) | set(page.tables)
    for row in rows:
        assert row["x_is"] or row["y_is"], row
        assert row["value"] == "" or row["value_is"], row
        float(row["value"] or 0)
    for title, figure in figures.items():
        own = [row for row in rows if row["figure"] == title]
        assert len(own) == sum(_size(trace) for trace in figure.data), title


def _size(trace) -> int:
    if trace.type == "heatmap":
        z = np.asarray(trace.z)
        return int((z != BLANK).sum()) if z.dtype == np.int8 else z.size
    if trace.x is None or trace.y is None:
        return 0
    return min(
        len(axis[0]) if len(axis) == 2 and not np.isscalar(axis[0]) else len(axis) for axis in (trace.x, trace.y)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verdicts", "texts", "damage", "rate", "storage", "spectra", "subspace"])
def test_the_json_says_the_same_as_the_csv(drawn, name):
    record, page = drawn[name]
    data = json.loads(view_json(record, AT, name, page))
    assert (data["run"], data["view"], data["says"]) == (record.id, name, page.words)
    assert data["selection"] == {"layer": 3, "head": 4, "token": 9} and data["columns"] == list(COLUMNS[1:])
    held = [*data["figures"].values(), *data["tables"].values()]
    assert sum(map(len, held)) == len(rows_of(record, name, page)) > 0
    assert set(data["figures"]) | set(data["absent"]) == set(page.figures)


@pytest.mark.slow
def test_values_are_those_of_the_record(drawn):
    record, arrays = make_run(lanes=3)
    _, page = drawn["damage"]
    grid = [row for row in rows_of(record, "damage", page) if row["figure"] == "grid-key"]
    errors = arrays["lane/1/delta_mean"].numpy().mean(-1)  # by query head; heads that share keys are one cell
    errors = errors.reshape(len(errors), record.environment.kv_heads, -1).mean(-1)
    found = np.array([float(row["value"]) for row in grid if row["series"] == "Lane 1"])
    assert found.size == errors.size and np.allclose(np.sort(found), np.sort(errors.ravel()), atol=errors.max() / 255)
    assert {row["value_is"] for row in grid} == {"mean |Δ score|"}


def test_a_label_that_a_spreadsheet_would_run_is_quoted():
    record, _ = make_run(lanes=1)
    figure = go.Figure(go.Scatter(x=["=1+1"], y=[2.0], name="@SUM(A1)"), {"xaxis": {"title": "lane"}})
    [row] = rows_of(record, "rate", Drawing("", {"one": figure}))
    assert row["series"] == "'@SUM(A1)" and row["x"] == "'=1+1" and row["y"] == "2.0"


def test_pooled_heatmaps_are_scaled_back():
    figure = go.Figure(go.Heatmap(z=np.array([[0, 127]], dtype=np.uint8), name="a"))
    figure.update_layout(meta={"scale": 0.5})
    assert [row[3] for row in points(figure)] == [0.0, 63.5]


@pytest.mark.slow
def test_verdicts_and_top_lists_are_exported_as_the_record_has_them(drawn):
    record, arrays = make_run(lanes=3)
    _, page = drawn["verdicts"]
    places = {"Noise floor": "noise"} | {lane.label: index for index, lane in enumerate(record.lanes)}
    for row in rows_of(record, "verdicts", page):
        figures = {name: value for name, value, *_ in lane_figures(record, arrays, places[row["series"]])}
        assert row["value"] == ("" if figures[row["x"]] is None else str(figures[row["x"]]))
        assert row["y"] == ("" if row["series"] == "Noise floor" else "risky")
    _, page = drawn["texts"]
    of_lane = [row for row in rows_of(record, "texts", page) if row["figure"] == "top-lists" and row["x"] == "9"]
    expected = np.concatenate([arrays[f"{key}/topk_probs"][8].float().numpy() for key in ("reference", "lane/0")])
    assert np.allclose([float(row["value"]) for row in of_lane], expected)


@pytest.mark.slow
def test_an_extrapolation_that_cannot_be_has_no_lines():
    record, arrays = make_run(lanes=1)
    with gr.Blocks():
        view = dict(TABS)["Bits"]()
    held = [picker.value for picker in view.pickers]
    [full, lane] = view.compute(record, arrays, AT, *held[:3], 1000, 2).tables["extrapolation"]
    env = record.environment
    assert full[:4] == ["FP16 cache", 1000, 2, 2 * 2 * env.layers * env.kv_heads * env.head_dim * 1000 * 2]
    assert 0 < lane[3] < full[3] and lane[6] == "bytes, This model"
    assert view.compute(record, arrays, AT, *held[:3], 0, 2).tables["extrapolation"] == []


@pytest.mark.slow
def test_a_basis_fades_in_a_long_context_wherever_it_is_shown():
    """SVDq's basis is most of what a short run stores of its keys, and next to nothing of 32,768 tokens."""
    runs = [packaged_store().load(summary.id) for summary in packaged_store().list()]
    record, arrays = next(run for run in runs if any(lane.label == "SVDq 2" for lane in run[0].lanes))
    at = [lane.label for lane in record.lanes].index("SVDq 2")
    growth, shape = growths(record)[at], shape_of(record)
    fixed = 2 * (192 * 72 + 192 + 2 * 72)  # bytes a layer: basis, mean, scale and zero-point of 72 of 192 channels
    exact = 2 + 8 * fixed / (192 * 32_768)
    assert effective_bits(growth, shape, 32_768) == pytest.approx((exact, 16), abs=1e-9)
    assert exact == pytest.approx(2.036, abs=5e-4)
    with gr.Blocks():
        view = dict(TABS)["Bits"]()
    page = view.compute(record, arrays, AT, *(picker.value for picker in view.pickers))
    told = json.loads(view_json(record, AT, "storage", page))
    for rows in (
        rows_of(record, "storage", page),
        [dict(zip(COLUMNS, ["length", *r], strict=True)) for r in told["figures"]["length"]],
    ):
        curve = {int(r["x"]): float(r["y"]) for r in rows if r["figure"] == "length" and r["series"] == "SVDq 2"}
        for tokens, bits in curve.items():
            key, value = effective_bits(growth, shape, tokens)
            assert bits == pytest.approx((key + value) / 2, abs=1e-3)
        assert curve[max(curve)] < 9.01  # keys at 2 bits beside values at 16
    [row] = [r for r in told["tables"]["extrapolation"] if r[0] == "SVDq 2"]
    elements = shape.layers * 192 * 32_768
    assert row[1] == 32_768 and row[3] == pytest.approx(elements * (exact + 16) / 8)
    assert size(row[3]) in page.html["extrapolation"]
