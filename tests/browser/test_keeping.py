"""Nothing is lost: the form's own changes are told, kept and in the link; views are places; runs have names."""

import json
from collections.abc import Iterator
from threading import Event

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import visits
from tests.browser.pages import VIEWS, open_view, run, unfold
from ui.panels.history import list_history, remember

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

SELECTED = "words => document.querySelector('#selected')?.innerText.startsWith(words)"


def changed(page) -> None:
    """New tokens 7, and the second lane off."""
    page.wait_for_selector(VIEWS["Verdicts"])
    unfold(page)
    page.get_by_role("button", name="Generation options").click()
    page.locator("#max-new-tokens input").fill("7")
    page.locator("#max-new-tokens input").press("Tab")
    page.locator(".lane-power").nth(1).click()
    page.wait_for_function("document.querySelectorAll('#differs li').length == 2")


def serious(page) -> list:
    return [
        (found["id"], [node["target"] for node in found["nodes"]])
        for found in Axe().run(page).response["violations"]
        if found["impact"] in ("serious", "critical")
    ]


@pytest.mark.long("page", sample=0)
def test_what_differs_is_told_kept_and_in_the_link(quick, browser):
    with visits(browser, reads_console=False) as visit:  # it is loaded again while figures may be under way
        page = visit(quick, reading=True)
        changed(page)
        told = page.locator("#differs").inner_text()
        assert "Form differs from this run in 2 places" in told
        page.locator("#differs summary").focus()
        page.keyboard.press("Enter")
        lines = page.locator("#differs li").all_inner_texts()
        assert [line.split() for line in lines] == [
            ["New", "tokens", "64", "7"],
            ["Lane", "SQuat_pre", "2-bit", "not", "in", "the", "form"],
        ]
        page.wait_for_function("location.search.includes('form=1.')")
        assert serious(page) == []
        link = page.url
        page.reload()
        page.wait_for_function("document.querySelectorAll('#differs li').length == 2")
        assert page.locator(".lane-row").nth(1).inner_text().endswith("off, not in the run")
        stranger = visit(link, reading=True)
        stranger.wait_for_function("document.querySelectorAll('#differs li').length == 2")
        assert "64 7" in " ".join(stranger.locator("#differs li").first.text_content().split())
        assert stranger.locator(".lane-row").count() == 5, "what is off is not asked for"
        page.locator("[data-form-back]").focus()
        page.keyboard.press("Enter")
        page.wait_for_function("!location.search.includes('form=')")
        page.wait_for_selector("#differs .differs-box", state="detached")
        assert page.locator(".lane-row").count() == 6


def test_back_and_forward_walk_views_with_their_selection(quick, open_page):
    page = open_page(quick, reading=True)
    page.wait_for_selector(VIEWS["Verdicts"])
    opening = page.locator("#selected").inner_text().split(" ·")[0]
    open_view(page, "Where")
    page.locator("#pick-layer input[type=number]").fill("7")
    page.locator("#pick-layer input[type=number]").press("Enter")
    page.wait_for_function(SELECTED, arg="Layer 7 ")
    page.locator("#legend .lane-switch").first.click()
    open_view(page, "Bits")
    for press, view, off in (
        (page.go_back, "damage", 1),
        (page.go_back, "verdicts", 0),
        (page.go_forward, "damage", 1),
    ):
        press()
        page.wait_for_selector(f"#views [data-view={view}][aria-selected=true]")
        page.wait_for_function("off => document.querySelectorAll('#legend li.off').length == off", arg=off)
        page.wait_for_function(SELECTED, arg="Layer 7 " if off else f"{opening} ")
    assert "view=damage" in page.url and "at=7." in page.url


RUNS = "JSON.stringify([...document.querySelectorAll('#runs a')].map(a => a.innerText))"


@pytest.fixture
def two_tabs(quick, browser) -> Iterator[tuple]:
    with visits(browser, reads_console=False) as visit:  # one is loaded again while figures may be under way
        first = visit(f"{quick}/?preset=first-look")
        second = first.context.new_page()
        second.goto(f"{quick}/?preset=first-look")
        yield first, second


def asks(page, words: str) -> None:
    page.wait_for_selector("#lane-row-3")
    unfold(page)
    page.locator("#prompt textarea").fill(words)
    run(page)


def lists(page, *words: str) -> None:
    page.wait_for_function(f"both => {RUNS} === both", arg=json.dumps(words, separators=(",", ":")))


@pytest.mark.long("journey", sample=0)
def test_two_tabs_keep_one_list_of_runs(two_tabs):
    first, second = two_tabs
    asks(first, "In the first tab")
    for page in two_tabs:
        lists(page, "In the first tab")
    asks(second, "In the second tab")
    for page in two_tabs:
        lists(page, "In the second tab", "In the first tab")
    assert first.locator("#history-find").is_visible()
    first.locator(".naming summary").nth(1).click()
    first.locator("[data-run-name]").nth(1).fill("Baseline")
    first.locator("[data-run-name]").nth(1).press("Enter")
    second.wait_for_function(f"{RUNS}.includes('Baseline')")
    second.locator(".naming summary").first.click()
    second.locator("[data-run-forget]").first.click()
    for page in two_tabs:
        lists(page, "Baseline")
    second.close()
    first.reload()
    lists(first, "Baseline")


@pytest.mark.long("journey", sample=0)
def test_a_run_that_another_tab_lists_while_this_one_keeps_its_own_is_not_lost(two_tabs, monkeypatch):
    first, second = two_tabs
    began, free = Event(), Event()

    def slowly(kept, record, *args):
        if record.question == "In the second tab":
            began.set()
            free.wait(60)
        return remember(kept, record, *args)

    monkeypatch.setattr("ui.layout.remember", slowly)
    asks(second, "In the second tab")
    assert began.wait(60)
    asks(first, "In the first tab")
    for page in two_tabs:
        lists(page, "In the first tab")
    free.set()
    for page in two_tabs:
        lists(page, "In the second tab", "In the first tab")


# As long as window.late is set no other tab is heard: as in a page whose scripts are still on their way.
DEAF = """window.late = true;
window.BroadcastChannel = class extends BroadcastChannel {
  set onmessage(hear) { super.onmessage = (event) => window.late || hear(event); }
}"""


@pytest.mark.long("journey", sample=0)
def test_a_run_that_joins_the_list_while_a_tab_is_on_its_way_is_not_lost(quick, browser, monkeypatch):
    comes, read, free = Event(), Event(), Event()

    def slowly(kept, *args):
        found = list_history(kept, *args)
        if comes.is_set():
            comes.clear()
            read.set()
            free.wait(60)
        return found

    monkeypatch.setattr("ui.layout.list_history", slowly)
    with visits(browser, reads_console=False) as visit:
        first = visit(f"{quick}/?preset=first-look")
        comes.set()
        second = first.context.new_page()
        second.add_init_script(DEAF)
        second.goto(f"{quick}/?preset=first-look")
        assert read.wait(60)
        asks(first, "While the other one came")
        lists(first, "While the other one came")
        second.evaluate("window.late = false")
        free.set()
        lists(second, "While the other one came")


@pytest.mark.long("journey", sample=0)
def test_a_name_that_is_typed_goes_on_when_a_run_joins_the_list(quick, open_page, engine):
    page = open_page(f"{quick}/?preset=first-look")
    page.wait_for_selector("#lane-row-3")
    run(page)
    page.wait_for_selector("#runs a")
    unfold(page)
    page.locator("#prompt textarea").fill("Joins")
    engine.free.clear()
    run(page)
    page.locator(".naming summary").first.click()
    page.locator("[data-run-name]").first.press_sequentially("Base line")
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    engine.free.set()
    page.wait_for_function("document.querySelector('#runs a')?.innerText == 'Joins'")
    page.keyboard.type("!")
    page.keyboard.press("Enter")
    page.wait_for_function(f'{RUNS} === \'["Joins","Base! line"]\'')


@pytest.mark.long("page", sample=0)
def test_runs_are_named_found_and_forgotten_and_what_is_seen_is_shared(quick, open_page):
    page = open_page(f"{quick}/?preset=first-look")
    page.wait_for_selector("#lane-row-3")
    for words in ("The first of them", "Another one"):
        page.locator("#prompt textarea").fill(words)
        run(page)
        page.wait_for_function("words => document.querySelector('#runs a')?.innerText == words", arg=words)
        page.wait_for_selector(VIEWS["Verdicts"])
        unfold(page)
    page.locator(".naming summary").nth(1).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("Baseline <i>")
    page.keyboard.press("Enter")
    page.wait_for_function("[...document.querySelectorAll('#runs a')].map(a => a.innerText)[1] == 'Baseline <i>'")
    page.locator("#history-find").locator("textarea, input").fill("basline")
    page.wait_for_function("document.querySelectorAll('#runs a').length == 1")
    assert page.locator("#runs a").inner_text() == "Baseline <i>"
    page.locator("#history-find").locator("textarea, input").fill("zzzzzz")
    page.wait_for_function("document.querySelector('#runs').innerText.includes('No run of yours')")
    page.locator("#history-find").locator("textarea, input").fill("")
    page.wait_for_function("document.querySelectorAll('#runs a').length == 2")
    page.locator(".naming summary").first.click()
    page.locator("[data-run-forget]").first.click()
    page.wait_for_function("document.querySelectorAll('#runs a').length == 1")
    page.wait_for_function("Object.values(localStorage).some(kept => kept.length)")
    open_view(page, "Text")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("[data-share]").click()
    shared = page.locator("#share textarea").input_value()
    assert "run=" in shared and "view=texts" in shared
    if not page.locator("#private").is_visible():
        page.wait_for_function("link => navigator.clipboard.readText().then(text => text == link)", arg=shared)
