"""All figures: structure, shared scales, no NaN, and a payload a browser takes in."""

import base64
import json

import numpy as np
import pytest
import torch

from kvq_core.record.fields import CaptureInfo
from kvq_core.record.subset import TOGETHER
from tests.support.ui_record_factory import LAYERS, QUERY_HEADS, make_run
from ui import figures as f
from ui.figures.base import decades
from ui.figures.damage import HEADING, worst_head
from ui.figures.rate import DISTORTIONS
from ui.html.colors import lane_color

PAYLOAD = 2.5e6
WIDEST_TITLE = 44  # characters of an axis title that a phone of 390 px shows whole


def all_figures(record, arrays):
    return {
        "grid_key": f.damage_grid(record, arrays, "relative", "key", 3, 1),
        "grid_value": f.damage_grid(record, arrays, "relative", "value", 3, 1),
        "score_map": f.score_map(record, arrays, 3, 2),
        "strips": f.kld_strips(record, arrays, 9),
        "attention": f.attention_rows(record, arrays, 3, 2, 8),
        "sinks": f.sink_change(record, arrays),
        "channels": f.channel_errors(record, arrays, "key", 3, 1),
        "depth": f.depth_error(record, arrays, "score"),
        **{f"rate_{what}": f.distortion_rate(record, arrays, what) for what in DISTORTIONS},
        "codes": f.code_usage(record, arrays, "key", 3, 1),
        "latent": f.latent_bits(record, arrays, 3),
        "symmetric": f.shares(record, arrays, "symmetric", "key"),
        "length": f.bits_by_length(record),
        "ranks": f.effective_rank(record, arrays, 3),
        "means": f.mean_shares(record, arrays, 3),
        "lane_spectra": f.lane_spectra(record, arrays, 3, 1),
        "pairs": f.key_pairs(record, arrays, 3, 1),
        "channels_key": f.distributions(record, arrays, 0, "key"),
        "channels_latent": f.distributions(record, arrays, 0, "latent"),
        "angles_query": f.angles(record, arrays, 3, 1, 5, "query_key"),
        "angles_key": f.angles(record, arrays, 3, 1, 5, "key_key"),
        "head_spectra": f.head_spectra(record, arrays, 3),
        "joint": f.joint_spectra(record, arrays, 3),
        "energy": f.cumulative_energy(record, arrays, 3),
        "deviation": f.deviation(record, arrays, 3, 5),
        "inside": f.error_inside(record, arrays, 3, 5),
        "split": f.error_split(record, arrays, 5),
        "stored": f.stored_bytes(record),
        "bits": f.bit_map(record, arrays, "key", "layers", 9),
    }


def numbers(part):
    """All arrays of a figure's JSON, which holds most of them as bytes in base64."""
    if isinstance(part, dict) and "bdata" in part:
        yield np.frombuffer(base64.b64decode(part["bdata"]), part["dtype"])
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from numbers(inner)
    elif isinstance(part, int | float):
        yield np.array(part)


@pytest.fixture(scope="module")
def every(run):
    """All figures of the run, which tests leave as they are."""
    return all_figures(*run)


@pytest.mark.slow
def test_every_figure_is_json_without_nan(every):
    for name, figure in every.items():
        told = json.loads(figure.to_json())
        arrays = list(numbers(told))
        assert arrays and all(np.isfinite(array).all() for array in arrays), name
        assert told["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"


@pytest.mark.slow
def test_axis_titles_fit_a_phone(every):
    for name, figure in every.items():
        told = [axis.title.text for axis in (*figure.select_xaxes(), *figure.select_yaxes()) if axis.title.text]
        assert told and max(map(len, told)) <= WIDEST_TITLE, (name, told)


def test_channel_bands_tell_their_scale(run):
    for axis in f.distributions(*run, 0, "key").select_yaxes():
        low, high = axis.range
        assert [value for value in axis.tickvals if low <= value <= high and value != 0], axis


@pytest.mark.slow
def test_a_full_run_stays_in_its_payload():
    record, arrays = make_run(lanes=TOGETHER, tokens=2100)
    sizes = {name: len(figure.to_json()) for name, figure in all_figures(record, arrays).items()}
    assert sum(sizes.values()) < PAYLOAD, sizes


def test_not_finite_values_are_drawn_as_zero(run):
    record, arrays = run
    broken = {**arrays, "lane/0/delta_mean": torch.full((LAYERS, QUERY_HEADS, 63), float("nan"))}
    assert "NaN" not in f.damage_grid(record, broken, "score", "key", 0, 0).to_json()


def test_lanes_share_one_colour_axis(run):
    grid = f.damage_grid(*run, "relative", "key", 3, 1)
    for figure, symmetric in ((grid, False), (f.score_map(*run, 3, 2), True)):
        assert {trace.coloraxis for trace in figure.data} == {"coloraxis"} and len(figure.data) == 3
        axis = figure.layout.coloraxis
        assert axis.cmin == (-axis.cmax if symmetric else 0) and axis.cmax > 0


def test_a_lane_keeps_its_colour(run):
    record, arrays = run
    curves = {trace.name: trace.line.color for trace in f.error_inside(record, arrays, 0, 5).data}
    assert curves["Lane 1"] == lane_color(1)
    assert f.error_split(record, arrays, 5).data[0].marker.color[1] == lane_color(1)


def test_nothing_captured_gives_no_figure(run):
    record, _ = run
    assert f.damage_grid(record, {}, "score", "key", 0, 0) is None and f.score_map(record, {}, 0, 0) is None
    assert f.bit_map(record, {}, "key", "layers", 0) is None and f.error_inside(record, {}, 0, 5) is None
    assert worst_head(record, {}) == (0, 0)


@pytest.mark.slow
def test_markup_in_a_label_reaches_plotly_escaped():
    record, arrays = make_run(labels=("<b onclick=x>bold</b>", "b"))
    for figure in all_figures(record, arrays).values():
        assert "<b onclick" not in figure.to_json()


@pytest.mark.slow
def test_every_absent_array_has_no_figure_and_every_view_a_sentence(run):
    """A run without captures draws no empty axes: each place says why it is empty."""
    record, _ = run
    bare = record.model_copy(
        update={"capture": CaptureInfo(detail="off", layers=[], heads=[], step_edges=[], position_edges=[], topk=5)}
    )
    for name, figure in all_figures(bare, {}).items():
        assert figure is None or name in ("stored", "length", "rate_kld", "rate_flips", "rate_key", "rate_value"), name


@pytest.mark.parametrize(
    "low, high, shown",
    [(0.02, 0.24, ["0.02", "0.05", "0.1", "0.2"]), (1e-6, 10, ["1e-05", "0.001", "1", "10"]), (12, 27, ["15", "20"])],
)
def test_logarithmic_ticks_are_written_out(low, high, shown):
    ticks = decades(low, high)
    within = [text for value, text in zip(ticks["tickvals"], ticks["ticktext"], strict=True) if low <= value <= high]
    assert set(shown) <= set(within) and len(within) <= 9
    assert [float(text) for text in ticks["ticktext"]] == pytest.approx(ticks["tickvals"])


def test_a_legend_tells_inside_from_outside():
    record, arrays = make_run(lanes=2)
    inside, outside = f.error_split(record, arrays, 5).data
    assert (inside.opacity, outside.opacity) == (1.0, 0.35)  # of the trace: a legend ignores the markers' own


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8])
def test_the_score_map_is_as_tall_as_the_two_figures_beside_it(lanes: int) -> None:
    record, arrays = make_run(lanes=lanes)
    tall, first = f.score_map(record, arrays, 3, 2), f.attention_rows(record, arrays, 3, 2, 8)
    beside = first.layout.height + f.sink_change(record, arrays).layout.height + HEADING
    assert abs(tall.layout.height - beside) <= lanes + 1  # rounded to px a row
