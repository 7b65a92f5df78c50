"""Acting where one looks: a lane that is offered is computed beside the run, joins it, says what it came to, and is
undone; and what a lane's damage comes from is asked on its card. With a stand-in that computes nothing."""

from collections.abc import Iterator

import pytest
from pyarrow.parquet import read_table

from tests.browser.conftest import visits
from tests.browser.pages import VIEWS, open_view
from tests.browser.test_span import serious
from tests.support.ui_record_factory import make_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
RUN = "ac7ac7ac7ac7ac7a"
FEW = "ac7ac7ac7ac7ac7b"  # with maps of its first layer alone
PAINTED = """[...document.querySelectorAll("#along .along-row")].filter((row) =>
    row.querySelector("canvas").hasAttribute("width") && row.querySelector("[data-number=kld]").textContent).length"""
LEGEND = "document.querySelectorAll('#legend li[data-of]').length"


@pytest.fixture(scope="module")
def acting(quick, quick_store) -> str:
    """The address of a page that knows both runs."""
    record, arrays = make_run(lanes=3, labels=("KIVI", "SQuat", "Tokens"))
    quick_store.save(record.model_copy(update={"id": RUN}), arrays)
    kept = record.capture.model_copy(update={"layers": [0]})
    quick_store.save(record.model_copy(update={"id": FEW, "capture": kept}), arrays)
    return quick


def opened(open_page, address: str, run: str = RUN, **size: int):
    page = open_page(f"{address}/?run={run}&at=5.4.9", reading=True, **size)
    page.wait_for_selector(VIEWS["Verdicts"])
    page.wait_for_function("document.querySelector('#act-offers h2')?.textContent.includes('layer 5')")
    return page


@pytest.fixture(scope="module")
def page(acting, browser) -> Iterator:
    """The run of three lanes, which tests leave as it was."""
    with visits(browser) as visit:
        yield opened(visit, acting)


@pytest.mark.long("journey", sample=0)
def test_a_lane_is_tried_by_the_keyboard_joins_the_run_says_what_changed_and_is_undone(page, acting, engine, open_page):
    page.locator("#act-lane").select_option(label="KIVI")
    page.wait_for_function("document.querySelector('#act-lane')?.selectedOptions[0].text === 'KIVI'")
    engine.free.clear()
    page.locator("#act-layer-fp16").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#act-status [data-act=cancel]")
    assert page.locator("#act-status").inner_text().startswith("Decoding: 1 of 4")
    engine.free.set()
    page.wait_for_selector("#act-tried [data-tried]")
    page.wait_for_function(f"{LEGEND} === 4")
    told = page.locator("#act-tried [data-tried]").inner_text()
    assert "KIVI + layer 5 fp16" in told and "\xa0→\xa0" in told and "±" in told
    assert page.locator("#card-4").is_visible() and "at=5.4.9" in page.url
    page.wait_for_function(f"{PAINTED} === 4")
    assert "Keep layer 5 in fp16" not in page.locator("#act-offers").inner_text(), "the run has it now"
    open_view(page, "Where")
    page.locator("#look-layers", has_text="layer 5 fp16 joined later").locator("[data-act=layers]").click()
    page.wait_for_function("document.querySelector('#act-status').textContent.includes('is looked at in all layers')")
    page.wait_for_function("!document.querySelector('#look-layers [data-act]')")
    page.locator("#plot-grid-key text", has_text="KIVI + layer 5 fp16").first.wait_for()
    child = page.locator("#act-tried [data-tried]").get_attribute("data-tried")
    assert opened(open_page, acting).locator("#act-tried [data-tried]").inner_text() == told, "also on another page"
    own = open_page(f"{acting}/?run={child}&at=5.4.9", reading=True)
    own.wait_for_selector("#act-offers a")
    assert own.locator("#act-offers a").get_attribute("href") == f"?run={RUN}"
    page.locator("#act-tried [data-act=undo]").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"{LEGEND} === 3")
    page.wait_for_function("document.activeElement.id === 'act-lane'")
    assert page.locator("#act-tried [data-tried]").count() == 0
    page.wait_for_selector("#act-layer-fp16")
    assert opened(open_page, acting).evaluate(LEGEND) == 3


def test_a_channel_and_a_key_that_are_clicked_are_acted_on(page):
    page.evaluate("window.kvq.pick({ channel: 5 })")
    page.wait_for_function("document.querySelector('#act-offers').textContent.includes('a turn spreads channel 5 ')")
    page.evaluate("window.kvq.pick({ key: 40, step: 8 })")
    page.wait_for_function("document.querySelector('#act-offers').textContent.includes('you pointed at them')")
    assert "Protect tokens 39-42 of the prompt" in page.locator("#act-offers").inner_text()


@pytest.mark.long("page", sample=0)
def test_what_is_under_way_is_cancelled_and_the_run_stays_as_it_was(page, engine):
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function("innerWidth == 390")
    page.emulate_media(reduced_motion="reduce")
    engine.free.clear()
    page.locator("#act-sinks").focus()
    told = """document.activeElement.click(), document.querySelector("#acts .begun [role=status]").innerText"""
    assert page.evaluate(told) == "Starting", "before the server has answered"
    page.locator("#act-status [data-act=cancel]").press("Enter")
    assert page.locator("#acts .begun").count() == 0
    page.wait_for_function("document.querySelector('#act-status').textContent.includes('Cancelled')")
    engine.free.set()
    assert page.evaluate(LEGEND) == 3 and page.locator("#act-tried [data-tried]").count() == 0
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert serious(page) == []
    page.set_viewport_size({"width": 1280, "height": 900})


def test_what_damage_comes_from_is_asked_on_a_card_and_what_gains_most_is_one_click_away(page, acting, open_page):
    open_view(page, "Verdicts")
    card, lanes = page.locator("section.verdict").nth(2), page.evaluate(LEGEND)
    card.locator("[data-act=why]").click()
    card.locator("table.waterfall").first.wait_for()
    rows = card.locator("table.waterfall th").all_inner_texts()
    assert rows[:4] == ["as it is", "keys in fp16", "values in fp16", "not explained"]
    assert page.locator("table.waterfall").count() == 2 and page.evaluate(LEGEND) == lanes
    heights = card.locator("table.waterfall tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect().height)"
    )
    assert max(heights) < 48, "a cause and its bar stand together"
    assert serious(page) == []
    opened(open_page, acting).wait_for_selector("section.verdict table.waterfall")  # it is kept with the run


@pytest.mark.long("page", sample=0)
def test_maps_of_a_layer_that_was_not_kept_are_computed_and_stay_with_the_run(acting, open_page):
    page = opened(open_page, acting, FEW)
    open_view_at_maps(page)
    assert "Layer 5, query head 4 was not kept in this run." in page.locator("#view-damage").inner_text()
    page.locator("#look-maps [data-act=map]").click()
    page.wait_for_function("document.querySelector('#act-status').textContent.includes('Looked at')")
    page.locator("#plot-score-map").scroll_into_view_if_needed()  # drawn when it comes into sight
    page.locator("#plot-score-map text", has_text="layer 5, query head 4").wait_for()
    assert "recorded" in page.locator("#look-maps").inner_text() and page.evaluate(LEGEND) == 3
    page = opened(open_page, acting, FEW)
    open_view_at_maps(page)
    page.locator("#plot-score-map").scroll_into_view_if_needed()
    page.locator("#plot-score-map .main-svg").first.wait_for()


def open_view_at_maps(page) -> None:
    page.locator("#views").get_by_role("tab", name="Where", exact=True).click()
    page.locator("#plot-grid-key .main-svg").first.wait_for()
    page.locator("#look-maps").scroll_into_view_if_needed()


@pytest.mark.long("page", sample=0)
def test_a_point_opens_its_lanes_card_and_a_figure_is_taken_away_by_its_menu(page, acting, tmp_path):
    open_view(page, "Rate–distortion")
    page.locator("#plot-rate-kld .scatterlayer .points path").last.click(force=True)
    page.wait_for_function("document.activeElement.id.startsWith('card-')")
    place = page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert 0 <= place < 900 and page.evaluate("document.activeElement.id") != "card-0"
    menu = page.locator("[data-figure-menu=rate-kld]")
    menu.locator("summary").focus()
    page.keyboard.press("Enter")
    with page.expect_download() as found:
        menu.get_by_text("Parquet").click()
    found.value.save_as(tmp_path / "rate.parquet")
    table = read_table(tmp_path / "rate.parquet")
    assert set(table["figure"].to_pylist()) == {"rate-kld"} and "KIVI" in table["series"].to_pylist()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menu.locator("summary").click()
    menu.locator("[data-take=embed]").click()
    page.wait_for_function(
        "document.querySelector('[data-figure-menu=rate-kld] [data-take=embed]').textContent === 'Copied'"
    )
    code = page.evaluate("navigator.clipboard.readText()")
    assert f'src="{acting}/embed?run={RUN}&view=rate"' in code
    page.wait_for_function("!document.querySelector('[data-figure-menu=rate-kld]').open")
    assert menu.locator("[data-take=embed]").text_content() == "Copy embed code"


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize(
    ("view", "figure"), [("Rate–distortion", "rate-flips"), ("Text", "kld-strips"), ("Where", "channels-key")]
)
def test_code_that_embeds_a_figure_cuts_nothing_of_it_and_is_copied_without_a_clipboard(page, view, figure):
    open_view(page, view)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.evaluate("document.addEventListener('copy', () => (window.copiedText = document.activeElement.value))")
    menu = page.locator(f"[data-figure-menu={figure}]")
    menu.locator("summary").click()
    menu.locator("[data-take=embed]").click()
    page.wait_for_function("window.copiedText?.startsWith('<iframe')")
    code = page.evaluate("window.copiedText")
    place = page.evaluate("JSON.parse(document.querySelector('#selected [data-at]').dataset.at)")
    at = f"&at={place['layer']}.{place['head']}.{place['token']}"
    assert f"view={'key-channels' + at if view == 'Where' else ''}" in code and (at in code) == (view == "Where")
    framed = page.context.new_page()
    framed.set_content(code)
    frame = framed.wait_for_selector("iframe").content_frame()
    frame.wait_for_selector("svg")
    assert frame.evaluate("document.documentElement.scrollHeight - innerHeight") == 0
    framed.close()
    page.evaluate("delete navigator.clipboard; delete window.copiedText")
