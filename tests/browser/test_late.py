"""What somebody chooses while the answer to the choice before is under way: it stays, whatever comes late."""

import itertools
import threading
import time

import pytest

from tests.browser.pages import VIEWS, run, unfold, wait_status
from ui import layout
from ui.views.tabs import OnPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
LATENCY = {"offline": False, "latency": 250, "downloadThroughput": -1, "uploadThroughput": -1}
KEEPS_MARKS = """() => {
  window.marks = [];
  const { mark, open } = window.kvq;
  window.kvq.mark = (token) => { window.marks.push(Number(token)); mark(token); };
  window.kvq.open = (view) => { window.marks.push(view); open(view); };
}"""
PICKS = """(picks) => {
  picks.forEach((pick, at) => setTimeout(() => window.kvq.pick(pick), 40 * at));
}"""
PICKERS = "['layer', 'head', 'token'].map(name => document.querySelector(`#pick-${name} input[type=number]`).value)"


KEEPS_TOKENS = """() => {
  window.tokens = [];
  const look = () => {
    const { value } = document.querySelector("#pick-token input[type=number]");
    if (value !== window.tokens.at(-1)) window.tokens.push(value);
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.fixture
def page(quick, open_page):
    """A page whose server answers after a quarter of a second."""
    page = open_page(quick)
    page.wait_for_selector(VIEWS["Verdicts"])
    page.wait_for_selector("#along [data-worst]")
    page.wait_for_selector("#selected [data-at]", state="attached")
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions", LATENCY)
    page.evaluate(KEEPS_MARKS)
    yield page
    session.send("Network.emulateNetworkConditions", {**LATENCY, "latency": 0})
    session.detach()


def rest(page) -> list:
    """What was marked and opened since the last time, once all answers came: picks are answered in their order, and
    the one of another head is the last."""
    heads = [page.evaluate(f"{PICKERS}[1]"), "0", "1"]
    page.evaluate(PICKS, [{"head": int(next(head for head in heads[1:] if head != heads[0]))}])
    page.wait_for_function(f"before => {PICKERS}[1] != before", arg=heads[0])
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
    return page.evaluate("window.marks.splice(0)")


@pytest.mark.long("page", sample=0)
def test_the_next_worst_is_not_taken_back(page):
    page.locator("#worst-lane").select_option(index=1)
    page.locator("#worst-lane").blur()
    for _ in range(3):
        page.keyboard.press("n")
    third = int(page.evaluate("window.kvq.token"))
    marks = rest(page)
    assert len(set(marks)) == 3 and set(marks[marks.index(third) :]) == {third}, marks
    assert page.evaluate(PICKERS)[2] == str(third)
    assert page.locator(".along-why").inner_text().startswith("3rd worst")


@pytest.mark.long("journey", sample=0)
def test_of_several_picks_each_holds(page):
    page.evaluate(PICKS, [{"layer": 1}, {"token": 5}, {"head": 2}, {"token": 6}])
    page.wait_for_function(f"{PICKERS}.join() == '1,2,6'", timeout=20_000)
    page.wait_for_function("JSON.parse(document.querySelector('#selected [data-at]').dataset.at).token == 6")


def test_the_answer_of_an_earlier_pick_does_not_come_last(quick, open_page, monkeypatch):
    picked, calls = OnPage.picked, itertools.count()

    def slow(*given):
        holds = picked(*given)
        time.sleep(1 if next(calls) == 0 else 0)
        return holds

    page = open_page(quick)
    page.wait_for_selector("#selected [data-at]", state="attached")
    page.wait_for_function(f"{PICKERS}.every(Boolean)")
    monkeypatch.setattr(OnPage, "picked", slow)
    page.evaluate(KEEPS_TOKENS)
    page.evaluate("window.kvq.pick({ token: 5 })")
    page.wait_for_timeout(300)  # asked for, and held
    page.evaluate("window.kvq.pick({ token: 6 })")
    page.wait_for_timeout(2000)  # what is late has come; where the machine is slower, the state below is waited for
    page.wait_for_function("window.tokens.at(-1) === '6'", timeout=20_000)
    page.wait_for_function("JSON.parse(document.querySelector('#selected [data-at]').dataset.at).token == 6")
    tokens = page.evaluate("window.tokens")
    assert tokens.count("6") == 1, tokens


@pytest.mark.long("page", sample=0)
def test_a_view_that_was_left_does_not_come_back(page):
    page.evaluate(  # one after the other, while the page is busy with the one before
        "['texts', 'damage', 'storage'].forEach((name, at) => "
        "setTimeout(() => document.querySelector(`[data-view=${name}]`).click(), 10 * at))"
    )
    opened = rest(page)
    assert opened[:3] == ["texts", "damage", "storage"] and set(opened[2:]) == {"storage"}
    page.wait_for_selector("#view-storage:not(.behind)")


@pytest.mark.long("page", sample=0)
def test_back_and_forth_ends_where_one_is(page):
    page.evaluate(PICKS, [{"token": 3}])
    page.wait_for_function("/at=\\d+\\.\\d+\\.3(&|$)/.test(location.search)")
    page.locator("[data-view=texts]").click()
    page.evaluate(PICKS, [{"token": 7}])
    page.wait_for_function("/at=\\d+\\.\\d+\\.7(&|$)/.test(location.search)")
    rest(page)
    page.evaluate("() => { history.back(); setTimeout(() => history.forward(), 150); }")
    page.wait_for_timeout(1500)  # several times the latency; where the machine is slower, the state below is waited for
    page.wait_for_function(
        f"{PICKERS}[2] == '7' && /view=texts/.test(location.search) && /at=\\d+\\.\\d+\\.7(&|$)/.test(location.search)",
        timeout=20_000,
    )


@pytest.mark.long("journey", sample=0)
def test_the_run_of_an_empty_page_does_not_come_over_one_that_was_begun(quick, engine, open_page, monkeypatch):
    draw, drawn, free = layout.finished_cards, threading.Event(), threading.Event()

    def held(*given, **how):
        assert free.wait(60)
        drawn.set()
        return draw(*given, **how)

    monkeypatch.setattr(layout, "finished_cards", held)
    engine.free.clear()
    page = open_page(quick)
    page.wait_for_selector("#lane-row-4")
    unfold(page)
    page.locator("#prompt textarea").fill("Typed before")
    run(page)
    wait_status(page, "Decoding: 1")
    free.set()
    assert drawn.wait(60)
    page.wait_for_timeout(1000)
    assert page.evaluate("document.body.dataset.stage") == "answers"
    page.locator("#prompt textarea").fill("Typed while it runs")
    engine.free.set()
    wait_status(page, "Done")
    page.wait_for_function("document.body.dataset.stage == 'results'")
