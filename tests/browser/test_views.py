"""Every view of a stored run, clicked through; console errors fail a test when it ends."""

import json
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.record.store import open_store
from tests.browser.conftest import visits
from tests.browser.pages import VIEWS, click_through, open_view
from tests.support.ui_record_factory import make_run
from ui.html.colors import SEQUENTIAL_DARK

# How far apart the tops of figures are that stand beside each other, in px: the most of any row in sight.
UNEVEN = """Math.max(0, ...[...document.querySelectorAll("#where .plots.even")].flatMap((row) => {
  const tops = [...row.querySelectorAll(".slot:not([hidden]) .plot")].filter((plot) => plot.checkVisibility())
    .map((plot) => plot.getBoundingClientRect().top);
  return tops.map((top) => Math.abs(top - tops[0])).filter((apart) => apart < 120); // farther: on the next line
}))"""
pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stored(store_folder) -> str:
    """A run of full size with every array, in the store before anybody asks for it."""
    record, arrays = make_run(lanes=3)
    open_store(store_folder).save(record, arrays)
    return record.id


@pytest.fixture(scope="module")
def many(store_folder) -> str:
    """A run of more lanes than are drawn."""
    record, arrays = make_run(lanes=20, scored=20, tokens=80)
    record = record.model_copy(update={"id": "feedfacefeed0020"})
    open_store(store_folder).save(record, arrays)
    return record.id


def takes_views_away(page, stored: str) -> None:
    open_view(page, "Rate–distortion")
    with page.expect_download() as csv:
        page.locator("#view-csv").click()
    lines = csv.value.path().read_text().splitlines()
    assert lines[0].startswith("figure,series,x,y") and any(line.startswith("rate-kld,Lane 1,") for line in lines)
    with page.expect_download() as found:
        page.locator("#view-json").click()
    data = json.loads(found.value.path().read_text())
    assert data["run"] == stored and data["view"] == "rate" and data["figures"]["rate-kld"]
    open_view(page, "Query subspace")
    with page.expect_download() as image:
        page.locator("[data-image=svg]").click()
    assert "<svg" in image.value.path().read_text()[:300]


@pytest.mark.long("page", sample=0)
def test_of_many_lanes_those_chosen_in_the_table_are_drawn(many, server, open_page):
    page = open_page(f"{server}/?run={many}&__theme=dark", width=390)
    page.wait_for_selector(VIEWS["Verdicts"])
    assert page.locator(".lane-table tbody tr").count() == 20 and page.locator("#cards .answer").count() == 9
    boxes, choose = page.locator(".lane-table input"), page.locator(".lane-table [data-draw='8']")
    assert boxes.evaluate_all("boxes => boxes.filter(box => box.checked).length") == 8
    open_view(page, "Bits")
    page.locator("#pick-layer input[type=number]").fill("3")
    page.locator("#pick-layer input[type=number]").press("Enter")
    for at in range(20):
        boxes.nth(at).check()
    choose.click()
    assert page.locator(".lane-table [role=status]").inner_text() == "20 are chosen; choose 1 to 8."
    for at in range(20):
        boxes.nth(at).set_checked(at in (2, 17))
    choose.click()
    page.wait_for_function("document.querySelectorAll('#cards .answer').length == 3")
    assert page.locator("#cards h3").all_inner_texts() == ["Full precision", "Lane 2", "Lane 17"]
    page.wait_for_function("document.querySelector('#legend .legend-rows')?.innerText.includes('Lane 17')")
    assert page.locator("#view-storage").is_visible(), "the view that was open stays open"
    assert page.locator("#pick-layer input[type=number]").input_value() == "3"
    open_view(page, "Verdicts")
    page.wait_for_function("document.querySelectorAll('#verdicts .verdict').length == 2")
    assert page.locator("#verdicts .verdict h3").all_inner_texts() == ["Lane 2", "Lane 17"]
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"innerWidth == {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".lane-table [data-draw=best]").click()
    page.wait_for_function("document.querySelectorAll('#cards .answer').length == 9")


@pytest.mark.long("journey", sample=0)
def test_every_view_of_a_stored_run_opens_on_a_phone_in_the_dark(stored, server, open_page):
    page = open_page(f"{server}/?run={stored}&__theme=dark", width=390)
    page.wait_for_selector(VIEWS["Verdicts"])
    click_through(page, 390)
    drawn = page.evaluate("document.querySelector('#plot-grid-key .js-plotly-plot').layout.coloraxis.colorscale[0][1]")
    assert drawn == SEQUENTIAL_DARK[0][1]
    open_view(page, "Where")  # its rows of figures are swiped, and scrolled by the keyboard, too
    found = Axe().run(page, context="#view-damage").response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


@pytest.fixture(scope="module")
def wide(stored, server, browser) -> Iterator:
    with visits(browser) as visit:
        page = visit(f"{server}/?run={stored}&__theme=light")
        page.wait_for_selector(VIEWS["Verdicts"])
        yield page


def test_every_view_of_a_stored_run_opens_and_is_taken_away(wide, stored):
    click_through(wide, 1280)
    for name in ("Where", "Rate–distortion", "Spectra"):
        open_view(wide, name)
        assert wide.evaluate(UNEVEN) < 1, name
    takes_views_away(wide, stored)


def test_a_click_anywhere_selects_everywhere(wide):
    page = wide
    open_view(page, "Text")
    page.locator("#text-forced [data-t='4']").click()
    page.wait_for_function("document.querySelector('#top-lists h4')?.innerText == 'Token 4'")
    assert page.locator("#pick-token input[type=number]").input_value() == "4"
    page.locator("#text-forced [data-tokens]").focus()
    for token in (5, 6):  # the focus stays in the text, which the server writes anew
        page.keyboard.press("ArrowRight")
        page.wait_for_function("t => document.querySelector('#top-lists h4')?.innerText == `Token ${t}`", arg=token)
    open_view(page, "Where")
    # the middle of the first lane's grid: a layer and a head that were not selected
    page.locator("#plot-grid-key").scroll_into_view_if_needed()
    grid = page.locator("#plot-grid-key .nsewdrag").first
    grid.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)  # the page scrolls smoothly
    box = grid.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.15, box["y"] + box["height"] * 0.9)
    page.mouse.click(box["x"] + box["width"] * 0.15, box["y"] + box["height"] * 0.9)
    page.wait_for_function("/KV head 2/.test(document.querySelector('#selected').innerText)")
    layer = page.locator("#pick-layer input[type=number]").input_value()
    page.locator("#plot-score-map").scroll_into_view_if_needed()
    page.wait_for_function(
        "l => document.querySelector('#plot-score-map').innerHTML.includes(`layer ${l}, query`)", arg=layer
    )
    highest, end_of_scale = page.evaluate(
        """() => {
            const { data, layout } = document.querySelector("#plot-score-map .js-plotly-plot");
            return [Math.max(...data[0].z.flatMap((row) => [...row]).filter(Number.isFinite)), layout.coloraxis.cmax];
        }"""
    )
    assert 0 < highest <= 1.001 * end_of_scale  # in score units, not the codes they came as
