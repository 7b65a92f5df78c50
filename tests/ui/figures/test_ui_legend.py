"""The page has one legend: no figure says its lanes in one of its own, and what is a lane's says whose it is."""

import json
import re
from functools import cache
from html import unescape

import gradio as gr
import pytest

from kvq_core.record.subset import TOGETHER
from tests.support.ui_record_factory import make_run
from ui.html.colors import REFERENCE, lane_color, with_alpha
from ui.html.legend import legend_html
from ui.selection import Selection
from ui.views.tabs import TABS

RECORD, ARRAYS = make_run(lanes=TOGETHER)
LABELS = [lane.label for lane in RECORD.lanes]


@cache
def drawn(create) -> tuple[str, list[dict]]:
    """Name and figures of a view as the page gets them."""
    with gr.Blocks():
        view = create()
    held = [picker.value for picker in view.pickers]
    if view.fit:
        held[: len(view.pickers)] = [
            update.get("value", value) for update, value in zip(view.fit(RECORD), held, strict=True)
        ]
    html = "".join(view.draw(RECORD, ARRAYS, Selection(3, 2, 9), held))
    figures = [json.loads(unescape(found)) for found in re.findall("<div hidden>(.*?)</div>", html, re.S)]
    return view.name, figures


@pytest.mark.slow
@pytest.mark.parametrize("create", [create for _, create in TABS], ids=[title for title, _ in TABS])
def test_no_figure_has_a_legend_of_lanes(create):
    name, figures = drawn(create)
    assert figures or name in ("verdicts", "attention")  # words and tables
    for figure in figures:
        if figure["layout"].get("showlegend") is False or len(figure["data"]) < 2:
            continue
        named = [t["name"] for t in figure["data"] if t["type"] in ("scatter", "bar") and t.get("showlegend", True)]
        assert not [n for n in named if any(label in n for label in LABELS)], figure["layout"]["meta"]


def rows_of(trace: dict) -> list[int]:
    """The lanes that a trace says it is of."""
    meta = trace["meta"] if isinstance(trace.get("meta"), dict) else {}
    return meta.get("lanes", [meta["lane"]] if "lane" in meta else [])


@pytest.mark.slow
def test_whatever_is_a_lanes_says_whose_it_is_and_has_its_colour():
    switched = set()
    for create in (create for _, create in TABS):
        for figure in drawn(create)[1]:
            every = [lane for trace in figure["data"] for lane in rows_of(trace)]
            switched |= set(every)
            axes = [key for key in figure["layout"] if re.fullmatch(r"yaxis\d+", key)]
            assert not axes or "overlaying" in figure["layout"][axes[0]] or every, figure["layout"]["meta"]
            for trace in figure["data"]:
                if isinstance((trace.get("meta") or {}).get("lane"), int) and "color" in trace.get("line", {}):
                    lane = trace["meta"]["lane"]
                    assert trace["line"]["color"] == (REFERENCE if lane < 0 else lane_color(lane))
                for at, color in enumerate(
                    trace.get("marker", {}).get("color", []) if "lanes" in (trace.get("meta") or {}) else []
                ):
                    own = lane_color(trace["meta"]["lanes"][at])
                    assert color in {own, *(with_alpha(own, alpha) for alpha in (1.0, 0.6, 0.25))}
    assert switched >= set(range(TOGETHER))


def test_the_legend_has_every_lane_with_its_colour_verdict_and_two_numbers():
    html = legend_html(RECORD, ARRAYS, range(TOGETHER))
    rows = re.findall(r'<li data-of="(\d)" class="lane-(\d)">(.*?)</li>', html)
    assert [(int(at), int(number)) for at, number, _ in rows] == [(at, at) for at in range(TOGETHER)]
    for (_, _, row), lane in zip(rows, RECORD.lanes, strict=True):
        assert lane.label in row and 'role="switch" aria-checked="true"' in row
        assert len(re.findall('<span class="num" data-number="[a-z]+">[^<]+</span>', row)) == 2
        assert re.search("risky|marginal|close", row)


def test_of_many_lanes_those_without_a_card_stand_below_the_others():
    record, arrays = make_run(lanes=20, scored=20, tokens=80)
    html = legend_html(record, arrays, [0, 3, 7])
    assert html.count("data-switch=") == 3 and html.count("data-add=") == 17 and "17 lanes more" in html
