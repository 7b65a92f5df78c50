"""Results beside each other: a grid of formats whose cells lead to their lanes, and two runs of two models, on one
scale, at one selection."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.support.ui_record_factory import make_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
RUN = "c09a41e5c09a41e5"
OTHER = "c09a41e5c09a41e6"  # of another model, half as deep
GRID = "c09a41e5c09a41e7"  # two formats of keys by two of values
TENSORS = ("keys", "values")
AXES = """n => ["A", "B"].map((run) => {
    const { layout } = document.querySelector(`#plot-versus-${n}${run} .js-plotly-plot`);
    return n ? layout.coloraxis.cmax : layout.yaxis.range[1];
})"""
TITLES = "[...document.querySelectorAll('#versus-figures .figure-title')].map(title => title.textContent)"


@pytest.fixture(scope="module")
def kept(quick, quick_store) -> str:
    """The address of a page that knows these runs."""
    record, arrays = make_run(lanes=3, labels=("KIVI", "SQuat", "Tokens"))
    quick_store.save(record.model_copy(update={"id": RUN}), arrays)
    other, its = make_run(lanes=2, scored=40, labels=("KIVI", "Other"))
    model = other.environment.model_copy(update={"model": "other", "model_title": "Another model", "layers": 15})
    its |= {name: 3 * values[:15] for name, values in its.items() if name.endswith("/key_error")}
    quick_store.save(other.model_copy(update={"id": OTHER, "environment": model}), its)
    quick_store.save(*grid())
    return quick


def grid():
    """A run whose lanes are a grid of formats, and its arrays."""
    record, arrays = make_run(4, labels=("K4 V4", "K4 V2", "K2 V4", "K2 V2"))
    rules = [
        {"rules": [{"method": "kivi", "tensors": t, "knobs": {"bits": b}} for t, b in zip(TENSORS, pair, strict=True)]}
        for pair in ((4, 4), (4, 2), (2, 4), (2, 2))
    ]
    told = zip(record.lanes, rules, strict=True)
    record.spec = {**record.spec, "lanes": [{"label": lane.label, **rule} for lane, rule in told]}
    for number, lane in enumerate(record.lanes):
        bits = {"key_bits": 4.5 - 2 * (number // 2), "value_bits": 4.5 - 2 * (number % 2)}
        lane.memory = lane.memory.model_copy(update=bits)
        lane.metrics = lane.metrics.model_copy(update={"first_divergence": 5})
        lane.tokens = [*lane.tokens[:5], *[" elsewhere"] * (len(lane.tokens) - 5)]
    return record.model_copy(update={"id": GRID}), arrays


def serious(page, context: str) -> list[str]:
    found = Axe().run(page, context=context).response["violations"]
    return [each["id"] for each in found if each["impact"] in ("serious", "critical")]


def test_two_runs_of_two_models_stand_beside_each_other_on_one_scale_at_one_selection(kept, open_page):
    page = open_page(f"{kept}/?run={RUN}&vs={OTHER}&at=5.4.9", reading=True)
    for place in ("0A", "0B", "1A", "1B"):
        page.locator(f"#plot-versus-{place}").scroll_into_view_if_needed()
        page.locator(f"#plot-versus-{place} .main-svg").first.wait_for()
    assert "Another model" in page.locator("#versus-found").inner_text()
    for row in (0, 1):
        one, other = page.evaluate(AXES, row)
        assert one == pytest.approx(other) and one > 0
    titles = page.evaluate(TITLES)
    assert [title for title in titles if "layer" in title] == [
        "A: Keys, relative error: layer 5",
        "B: Keys, relative error: layer 2",  # as deep in a model of half as many
    ]
    assert [title for title in titles if "token" in title] == [f"{run}: KLD of every token, token 9" for run in "AB"]
    page.locator("#pick-layer input[type=number]").fill("29")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{TITLES}.some(title => title.endsWith('layer 14'))")
    assert "A: Keys, relative error: layer 29" in page.evaluate(TITLES), "both follow one selection"
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("innerWidth == 390")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert serious(page, "#beside") == []


@pytest.mark.long("journey", sample=0)
@pytest.mark.parametrize("width, theme", [(1280, "light"), (390, "dark")])
def test_a_grids_cell_says_where_its_text_parts_and_opens_its_lanes_card(kept, open_page, width, theme):
    page = open_page(f"{kept}/?run={GRID}&view=rate&__theme={theme}", width=width, reading=True)
    page.emulate_media(reduced_motion="reduce")
    place = page.locator("#plot-grid")
    place.scroll_into_view_if_needed()
    place.locator(".main-svg").first.wait_for()
    place.scroll_into_view_if_needed()
    box = place.locator(".nsewdrag").first.bounding_box()
    at = box["x"] + 0.25 * box["width"], box["y"] + 0.75 * box["height"]
    page.mouse.move(*at)
    told = place.locator(".hoverlayer .hovertext").first
    told.wait_for()
    assert all(words in told.text_content() for words in ("K2 V4", "from token 5 on", "elsewhere"))
    page.mouse.click(*at)
    page.wait_for_function("document.activeElement.id === 'card-3'")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert serious(page, "#where") == []
