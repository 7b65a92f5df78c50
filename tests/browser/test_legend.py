"""Lanes are switched, shown alone and emphasised in the one legend, for all cards and figures, and the link says so."""

from collections.abc import Iterator

import pytest

from kvq_core.record.store import open_store
from tests.browser.conftest import visits
from tests.browser.pages import VIEWS, open_view
from tests.browser.test_span import SHIPPED
from tests.browser.test_span import opened as read_at_once
from tests.support.ui_record_factory import make_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

ROWS = """() => [...document.querySelectorAll("#plot-grid-key .infolayer .annotation text")]
  .map(text => text.textContent).filter(text => text.startsWith("Lane"))"""
# The lanes with anything drawn in the figures of the open view.
DRAWN = """() => [...new Set([...document.querySelectorAll("#where .js-plotly-plot :is(g.trace, g.hm)")]
  .filter(trace => trace.checkVisibility({visibilityProperty: true}) && trace.style.display !== "none")
  .map(trace => trace.__data__[0].trace.meta?.lane).filter(lane => lane >= 0))].sort()"""
# How often figures are drawn between the press of a second switch and its frame, while those of the first are drawn.
AHEAD = """() => new Promise((done) => {
  const press = (lane) => document.querySelector(`#legend [data-switch='${lane}']`).click();
  const react = window.Plotly.react;
  let drawn = 0;
  const pressed = () => {
    const before = drawn;
    press(2);
    requestAnimationFrame(() => setTimeout(() => { window.Plotly.react = react; done(drawn - before); }));
  };
  window.Plotly.react = (...figure) => { if (!drawn++) setTimeout(pressed); return react(...figure); };
  press(1);
})"""
CARDS = """[...document.querySelectorAll('#cards .answer')]
  .filter(card => getComputedStyle(card).display !== 'none').map(card => card.id)"""


@pytest.fixture(scope="module")
def stored(store_folder) -> str:
    record, arrays = make_run(lanes=4)
    record = record.model_copy(update={"id": "1e9e4d001e9e4d00"})
    open_store(store_folder).save(record, arrays)
    return record.id


def opened(open_page, address: str):
    page = open_page(address, reading=True)
    page.wait_for_selector(VIEWS["Verdicts"])
    return page


def switch(page, lane: int):
    return page.locator(f"#legend [data-switch='{lane}']")


def fetches_a_view_that_is_pointed_at(page) -> None:
    assert page.locator("#where .view.behind").count() == len(VIEWS) - 1, "a view is fetched when somebody wants it"
    page.locator("#views [data-view=damage]").hover()
    page.wait_for_selector("#view-damage:not(.behind)", state="attached")
    assert page.locator("#views [data-view=verdicts]").get_attribute("aria-selected") == "true"


@pytest.fixture(scope="module")
def page(stored, server, browser) -> Iterator:
    """Of all lanes, which tests leave as they found it."""
    with visits(browser) as visit:
        page = opened(visit, f"{server}/?run={stored}")
        fetches_a_view_that_is_pointed_at(page)
        open_view(page, "Where")
        yield page


def test_a_lane_is_switched_everywhere_at_once_and_the_link_leaves_it_out(stored, page, open_page):
    page.wait_for_function(f"({DRAWN})().join() === '0,1,2,3'")
    height = page.locator("#plot-grid-key").bounding_box()["height"]
    page.evaluate("document.querySelector(\"#legend [data-switch='1']\").click()")
    assert page.evaluate(DRAWN) == [0, 2, 3], "before any figure is drawn again"
    assert page.evaluate(CARDS) == ["card-0", "card-1", "card-3", "card-4"]
    assert switch(page, 1).get_attribute("aria-checked") == "false"
    page.locator("#plot-grid-key").scroll_into_view_if_needed()
    page.wait_for_function(f"({ROWS})().join() === 'Lane 0,Lane 2,Lane 3'")
    page.wait_for_function("h => document.querySelector('#plot-grid-key').offsetHeight < h - 40", arg=height)
    assert "off=1" in page.url
    open_view(page, "Rate–distortion")
    assert page.evaluate(DRAWN) == [0, 2, 3]
    other = open_page(page.url, reading=True)  # of the view that was open: its link says that, too
    other.wait_for_selector("#card-4")
    other.wait_for_function(f"document.querySelector('#legend [data-run]')?.dataset.run === '{stored}'")
    assert other.evaluate(CARDS) == ["card-0", "card-1", "card-3", "card-4"]
    for each in (other, page):
        each.locator("#legend [data-lanes=all]").click()
        assert len(each.evaluate(CARDS)) == 5
        each.wait_for_function("!location.href.includes('off=')")


def test_a_switch_is_on_the_screen_before_figures_of_the_one_before_it_are_drawn(page):
    open_view(page, "Where")
    page.evaluate("document.querySelector('#where').scrollIntoView()")
    page.wait_for_function(f"({DRAWN})().join() === '0,1,2,3'")
    assert page.evaluate(AHEAD) == 0
    page.wait_for_function(f"({ROWS})().join() === 'Lane 0,Lane 3'")
    page.wait_for_function("new URLSearchParams(location.search).get('off') === '1.2'")
    page.locator("#legend [data-lanes=all]").click()
    page.wait_for_function(f"({DRAWN})().join() === '0,1,2,3'")


def test_what_is_out_of_sight_is_spared_for_one_frame_and_no_longer(page):
    spared = "['answers', 'score-table'].filter(id => document.getElementById(id).style.contentVisibility === 'hidden')"
    page.evaluate("document.getElementById('views').scrollIntoView()")
    tall = page.evaluate("document.getElementById('answers').offsetHeight")
    page.evaluate("document.querySelector(\"#legend [data-switch='1']\").click()")
    assert page.evaluate(spared) in ([], ["answers", "score-table"])  # the frame may have come
    page.wait_for_function(f"!{spared}.length")
    page.wait_for_selector("#card-2", state="hidden")
    switch(page, 1).click()
    page.wait_for_function(f"!{spared}.length")
    page.wait_for_selector("#card-2", state="visible")
    page.wait_for_function("tall => document.getElementById('answers').offsetHeight === tall", arg=tall)


def test_a_lane_that_is_off_stays_so_in_what_the_server_writes_anew(page):
    switch(page, 1).click()
    page.wait_for_selector("#card-2", state="hidden")
    page.evaluate("document.querySelector('#cards').innerHTML += ''")  # all elements are others now
    page.wait_for_selector("#card-2", state="hidden")
    switch(page, 1).click()
    page.wait_for_selector("#card-2", state="visible")


def test_a_lane_is_shown_alone_and_emphasised_by_mouse_and_keyboard(page):
    open_view(page, "Where")
    switch(page, 2).dblclick()
    assert page.evaluate(CARDS) == ["card-0", "card-3"]
    switch(page, 2).dblclick()
    assert len(page.evaluate(CARDS)) == 5
    switch(page, 0).focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.switch") == "1"
    page.keyboard.press("s")
    assert page.evaluate(CARDS) == ["card-0", "card-2"]
    page.keyboard.press("s")
    page.keyboard.press("Space")
    assert page.evaluate(CARDS) == ["card-0", "card-1", "card-3", "card-4"]
    opacity = "card => getComputedStyle(document.getElementById(card)).opacity"
    cards = ("card-0", "card-1", "card-4")
    row = switch(page, 3).bounding_box()
    page.evaluate("document.getElementById('legend').style.translate = '0 -2000px'")
    page.mouse.move(row["x"] + 9, row["y"] + 9)
    page.evaluate("document.getElementById('legend').style.translate = ''")
    page.wait_for_selector("#legend [data-switch='3']:hover")  # it came to lie there, nobody went to it
    assert [page.evaluate(opacity, card) for card in cards] == ["1", "1", "1"]
    page.mouse.move(row["x"] + 12, row["y"] + 9)
    assert [page.evaluate(opacity, card) for card in cards] == ["1", "0.25", "1"]


@pytest.mark.long("page", sample=0)
def test_of_many_lanes_one_more_is_drawn_in_place_of_the_last(store_folder, server, open_page):
    record, arrays = make_run(lanes=12, scored=20, tokens=80)
    record = record.model_copy(update={"id": "1e9e4d001e9e4d12"})
    open_store(store_folder).save(record, arrays)
    page = opened(open_page, f"{server}/?run={record.id}")
    page.locator("#legend .others summary").click()
    asked = page.locator("#legend [data-add]").first.locator(".name").evaluate("name => name.firstChild.textContent")
    page.locator("#legend [data-add]").first.click()
    page.wait_for_function("name => document.querySelector('#cards').innerText.includes(name + '\\n')", arg=asked)
    assert page.locator("#cards .answer").count() == 9


@pytest.mark.long("journey", sample=0)
def test_the_worst_tokens_are_of_lanes_that_are_on(quick, open_page):
    record, arrays = SHIPPED
    worst = sorted(range(len(record.lanes)), key=lambda at: -float(arrays[f"lane/{at}/kld"].mean()))
    page = read_at_once(open_page, f"{quick}/?run={record.id}&off={worst[0]}")
    pick, shown = page.locator("#worst-lane"), "#worst-lane option:not([hidden])"
    page.wait_for_function("n => document.querySelector('#worst-lane').value == n", arg=str(worst[1]))
    assert page.locator(shown).count() == len(record.lanes) - 1
    page.locator("[data-worst='1']").click()
    assert f"in {record.lanes[worst[1]].label}:" in page.locator(".along-why").inner_text()
    page.locator(f"[data-switch='{worst[1]}']").click()
    assert pick.input_value() == str(worst[2]) and page.locator(".along-why").inner_text() == ""
    page.locator("[data-lanes=all]").click()
    assert pick.input_value() == str(worst[0]) and page.locator(shown).count() == len(record.lanes)
