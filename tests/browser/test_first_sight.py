"""What a visitor sees first: an answer with its reason, the lanes beside it, and the form folded to what was asked."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.pipeline.examples import packaged_store
from tests.browser.conftest import visits
from tests.browser.pages import VIEWS, open_view, run, wait_status
from ui.html.glossary import MEANINGS
from ui.panels.tour import shipped_ids
from ui.panels.welcome import home
from ui.words.answer import answer

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

RECORD, ARRAYS = packaged_store().load(home()["run"])
SHIFTS = """window.shifts = 0; new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({type: "layout-shift", buffered: true});"""
HEIGHTS = "(which) => [...new Set([...document.querySelectorAll(which)].map((e) => e.getBoundingClientRect().top))]"
FOCUSED = "(({ top, bottom }) => [top, bottom])(document.activeElement.getBoundingClientRect())"
TOPS = "ids => ids.map(id => document.getElementById(id).getBoundingClientRect().top)"


def test_an_empty_page_answers_with_the_run_that_ships(quick, browser):
    with visits(browser, reads_console=False) as visit:  # it is loaded again while figures may be under way
        read(visit(quick, reading=True))


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize(
    ("width", "name", "look"),
    [(1280, "first-sight", ""), (390, "keys-or-values", ""), (390, "", ""), (1280, "keys-or-values", "&view=damage")],
)
def test_the_answer_is_there_before_any_script_and_stays_where_it_is(quick, browser, width, name, look):
    """Of an empty page, and of a run's link."""
    told = answer(*packaged_store().load(shipped_ids()[name])) if name else answer(RECORD, ARRAYS)
    address = f"{quick}/?run={shipped_ids()[name]}{look}" if name else quick
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    held, over = [], []
    page.route("**/assets/**", lambda route: route.continue_() if over else held.append(route))  # the line is slow
    page.goto(address, wait_until="commit")
    page.locator("#early h1").wait_for()
    assert told.facts[0] in page.locator("#early .answer-first").inner_text()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    parts = ("h1", ".pill", ".tradeoff") if name else (".two-models h2", ".two-models .subtract")  # what is in sight
    before = places(page, "#early", parts)
    over.append(True)
    for route in held:
        route.continue_()
    page.wait_for_selector("#early", state="detached")
    assert places(page, "#answer", parts) == pytest.approx(before, abs=6) and told.facts[0] in page.inner_text(
        "#answer"
    )
    context.close()


def places(page, which: str, parts: tuple[str, ...]) -> list[float]:
    """Where parts of the answer are on the page, which a link to a view has scrolled."""
    down = page.evaluate("scrollY")
    found = [page.locator(f"{which} {part}").last.bounding_box() for part in parts]
    return [box[side] + down * (side == "y") for box in found for side in ("x", "y", "width", "height")]


def read(page) -> None:
    told = answer(RECORD, ARRAYS)
    assert told.sentence.split(" of the fp16")[0] in page.locator("#answer h1").inner_text().replace("\xa0", " ")
    assert told.facts[0] in page.locator("#answer").inner_text() and "instead of" in told.facts[0]
    two = page.locator("#answer .two-models")
    assert "ruins it on Qwen2.5-Coder" in two.locator("h2").inner_text() and "The five papers" in two.inner_text()
    plain = two.locator("tbody tr").nth(3).inner_text()
    two.locator("#subtract-mean").check()
    assert two.locator("tbody tr").nth(3).inner_text() != plain, "the same format, its mean key subtracted"
    assert page.locator("#answer .point").count() == len(RECORD.lanes)
    page.wait_for_selector(VIEWS["Verdicts"])
    assert page.evaluate("location.search") == "" and page.locator("#legend .lane-switch").count() == len(RECORD.lanes)
    assert not page.locator("#prompt").is_visible() and RECORD.question[:40] in page.locator("#asked").inner_text()
    page.locator("#asked [data-form=open]").click()
    assert page.locator("#prompt textarea").input_value() == RECORD.spec["prompt"]
    assert page.evaluate("document.activeElement.closest('#prompt') !== null")
    page.reload()
    page.wait_for_selector("#prompt textarea")  # open as it was left
    page.locator("#asked [data-form=fold]").click()
    assert not page.locator("#prompt").is_visible()


def test_the_form_folds_when_its_run_is_there(quick, open_page):
    page = open_page(f"{quick}/?preset=first-look", reading=True)
    page.wait_for_selector("#lane-row-4")
    assert not page.locator("#answer").is_visible()
    run(page)
    wait_status(page, "Done")
    page.wait_for_selector(VIEWS["Verdicts"])
    page.locator("#run").wait_for(state="hidden")
    assert page.locator("#answer h1").is_visible() and page.locator("#legend .lane-switch").count() == 5


@pytest.fixture(scope="module")
def seen(request, quick, browser) -> Iterator:
    """The page as a first visitor sees it, of that width and theme, and that width; 640 is a desk at 200 %."""
    width, theme = request.param
    with visits(browser) as visit:
        page = visit(f"{quick}/?__theme={theme}", width=width, height=450 if width == 640 else 900, reading=True)
        page.emulate_media(reduced_motion="reduce" if width == 640 else "no-preference")
        page.evaluate(SHIFTS)
        page.wait_for_selector(VIEWS["Verdicts"])
        page.wait_for_timeout(1000)
        yield page, width


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize("seen", [(1920, "dark"), (390, "light"), (640, "light")], indirect=True)
def test_nothing_moves_overflows_or_is_out_of_reach(seen):
    page, width = seen
    assert page.evaluate("window.shifts") < 0.01
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    tops = page.evaluate(TOPS, ["answer", "cards", "where"])
    assert tops == sorted(tops)
    if width < 900:
        assert page.evaluate(TOPS, ["left"]) > tops[-1:], "in one column the lanes come after the evidence"
    if width == 390:
        for swiped in ("#views [role=tab]", ".verdicts > .verdict"):
            assert len(page.evaluate(HEIGHTS, swiped)) == 1, f"{swiped} are not in one line"
    serious = [
        (found["id"], [node["target"] for node in found["nodes"]])
        for found in Axe().run(page).response["violations"]
        if found["impact"] in ("serious", "critical")
    ]
    assert serious == []
    if width == 640:
        page.locator("#legend [data-switch]").first.focus()
        page.keyboard.press("Space")
        page.wait_for_selector("#card-1", state="hidden")
        top, bottom = page.evaluate(FOCUSED)
        assert 0 <= top < bottom <= 450, "what has the focus is in sight"


@pytest.mark.parametrize("seen", [(1920, "dark")], indirect=True)
def test_a_word_is_explained_for_pointer_and_focus(seen):
    page, _ = seen
    word = page.locator("#legend [data-term=KLD]")
    word.focus()
    page.wait_for_selector("#meaning:not([hidden])")
    assert page.locator("#meaning").inner_text() == MEANINGS["KLD"]
    assert word.get_attribute("aria-describedby") == "meaning"
    page.keyboard.press("Escape")
    page.wait_for_selector("#meaning", state="hidden")
    page.wait_for_selector(VIEWS["Verdicts"])  # what is drawn under the pointer takes its word away
    page.locator("#answer .tradeoff [data-term=bytes]").hover()
    page.wait_for_function("said => document.querySelector('#meaning').innerText === said", arg=MEANINGS["bytes"])


@pytest.mark.long("page", sample=0)
def test_a_link_looks_at_the_view_and_the_selection_it_was_copied_with(quick, open_page):
    page = open_page(f"{quick}/?run={RECORD.id}", reading=True)
    page.wait_for_selector(VIEWS["Verdicts"])
    open_view(page, "Where")
    page.locator("#pick-layer input[type=number]").fill("7")
    page.locator("#pick-layer input[type=number]").press("Enter")
    page.wait_for_function("location.search.includes('view=damage') && location.search.includes('at=7.')")
    page = open_page(page.url, reading=True)
    page.wait_for_function("document.querySelector('#selected')?.innerText.startsWith('Layer 7 ')")
    page.wait_for_selector("#views [data-view=damage][aria-selected=true]")
    page = open_page(f"{quick}/?run={RECORD.id}&view=none&at=x", reading=True)
    page.wait_for_selector(VIEWS["Verdicts"])


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize(("asked", "wait"), [("preset=first-look", "#lane-row-0"), (f"run={RECORD.id}", "#answer h1")])
def test_a_page_has_one_heading_above_all_others(quick, open_page, asked, wait):
    page = open_page(f"{quick}/?{asked}")
    page.wait_for_selector(wait)
    assert page.locator("h1:visible").count() == 1
