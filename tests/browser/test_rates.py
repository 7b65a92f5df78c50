"""Loss against bits of tokens that are brushed: the browser draws what the figure draws of a run of these alone."""

import json

import pytest

from tests.browser.pages import open_view
from tests.browser.test_span import COMPUTED, SHIPPED, opened
from tests.support.span_figures import Span, span_figures
from ui.figures.rate import distortion_rate
from ui.html.along_data import along_data
from ui.html.scripts import part

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
RATED = f"([figure, lanes]) => {{ {part('numbers')} {part('rows')} {part('rates')} return rated(figure, lanes); }}"


def of_span(span: Span):
    """The shipped run with the loss of these tokens in place of the answer's."""
    record, arrays = SHIPPED
    lanes = []
    for at, lane in enumerate(record.lanes):
        found = span_figures(record, arrays, at, span)
        now = {"kld_mean": found.kld_mean, "flip_rate": found.flip_rate}
        lanes.append(lane.model_copy(update={"metrics": lane.metrics.model_copy(update=now)}))
    return record.model_copy(update={"lanes": lanes}), arrays


@pytest.mark.parametrize("what", ["kld", "flips"])
def test_both_sides_draw_the_same_of_a_span(browser, what):
    page = browser.new_page()
    whole = json.loads(distortion_rate(*SHIPPED, what).to_json())
    spans = [(12, 20), (1, 63), (30, 31)]
    sent = json.dumps(along_data(*SHIPPED))
    for (first, last), figures in zip(spans, page.evaluate(COMPUTED, [sent, spans]), strict=True):
        drawn = page.evaluate(RATED, [whole, figures["lanes"]])
        expected = json.loads(distortion_rate(*of_span(Span(first, last)), what).to_json())
        for trace, alike in zip(drawn["data"], expected["data"], strict=True):
            assert trace["x"] == pytest.approx(alike["x"]) and trace["y"] == pytest.approx(alike["y"], rel=1e-5)
            assert "text" not in alike or float(trace["text"][0]) == pytest.approx(float(alike["text"][0]), rel=6e-3)
        axes = drawn["layout"]["yaxis"], expected["layout"]["yaxis"]
        assert axes[0]["tickvals"] == pytest.approx(axes[1]["tickvals"], rel=1e-5)
        assert (axes[0]["ticktext"][0] == "0") == (axes[1]["ticktext"][0] == "0")
    page.close()


def test_the_figure_follows_the_tokens_that_are_brushed(quick, open_page):
    page = opened(open_page, f"{quick}/?run={SHIPPED[0].id}&span=12-20")
    open_view(page, "Rate–distortion")
    drawn = "document.querySelector('#plot-rate-kld .js-plotly-plot').data.find(({ meta }) => meta?.lane === 0).y[0]"
    page.wait_for_function("document.querySelector('#plot-rate-kld .js-plotly-plot')?.data")
    found = span_figures(*SHIPPED, 0, Span(12, 20))
    assert page.evaluate(drawn) == pytest.approx(found.kld_mean, rel=1e-5)
    of_whole = page.locator("#view-rate .of-whole").evaluate_all("places => places.map((place) => place.id)")
    assert not {"plot-rate-kld", "plot-rate-flips"} & set(of_whole)
    page.keyboard.press("Escape")
    page.wait_for_function(f"y => Math.abs({drawn} - y) < 1e-6", arg=SHIPPED[0].lanes[0].metrics.kld_mean)
