"""The colours of the lanes are said once a view, above its figures, and in none of their legends."""

import json
import re
from html import unescape

import gradio as gr
import pytest

from kvq_core.record.part import TOGETHER
from tests.support.ui_record_factory import make_run
from ui.selection import Selection
from ui.views.tabs import TABS

RECORD, ARRAYS = make_run(lanes=TOGETHER)
LABELS = [lane.label for lane in RECORD.lanes]
KEYED = {"damage", "rate", "storage", "spectra", "subspace"}  # the others have no curves of lanes


def drawn(create) -> tuple[str, str, list[dict]]:
    """Name, HTML and figures of a view as the page gets them."""
    with gr.Blocks():
        view = create()
    held = [picker.value for picker in view.pickers]
    if view.fit:
        held[: len(view.pickers)] = [
            update.get("value", value) for update, value in zip(view.fit(RECORD), held, strict=True)
        ]
    html = "".join(view.draw(RECORD, ARRAYS, Selection(3, 2, 9), held))
    figures = [json.loads(unescape(found)) for found in re.findall("<div hidden>(.*?)</div>", html, re.S)]
    return view.name, html, figures


@pytest.mark.slow
@pytest.mark.parametrize("create", [create for _, create in TABS], ids=[title for title, _ in TABS])
def test_one_legend_a_view(create):
    name, html, figures = drawn(create)
    keys = re.findall('<p class="lane-key">(.*?)</p>', html)
    assert len(keys) == (name in KEYED)
    assert all(label in key for key in keys for label in LABELS)
    for figure in figures:
        if figure["layout"].get("showlegend") is False or len(figure["data"]) < 2:
            continue
        named = [t["name"] for t in figure["data"] if t["type"] in ("scatter", "bar") and t.get("showlegend", True)]
        assert not [n for n in named if any(label in n for label in LABELS)], figure["layout"]["meta"]
    assert figures or name == "verdicts"


@pytest.mark.slow
def test_the_legend_says_the_colours_of_the_curves():
    for create in (create for _, create in TABS):
        _, html, figures = drawn(create)
        for trace in (trace for figure in figures for trace in figure["data"]):
            lane = trace.get("meta", {}).get("lane") if isinstance(trace.get("meta"), dict) else None
            if lane is not None:
                color = trace["line"]["color"] if "line" in trace else trace["marker"]["color"]
                label = LABELS[lane] if lane >= 0 else "Full precision"
                assert f'style="background:{color}"></span>{label}</span>' in html
