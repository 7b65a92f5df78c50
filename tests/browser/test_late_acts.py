"""What takes long ends where one is by then: it takes back nothing that was done since."""

import threading

import pytest

from tests.browser.pages import VIEWS, run, unfold, wait_status
from tests.support.ui_record_factory import make_run
from ui import layout

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
RUN = "1a7e1a7e1a7e1a7e"
LEGEND = "document.querySelectorAll('#legend li[data-of]').length"
TOKEN = "document.querySelector('#pick-token input[type=number]').value"


@pytest.fixture
def page(quick, quick_store, open_page):
    """A run of three lanes with the offers of layer 5."""
    record, arrays = make_run(lanes=3, labels=("KIVI", "SQuat", "Tokens"))
    quick_store.save(record.model_copy(update={"id": RUN}), arrays)
    page = open_page(f"{quick}/?run={RUN}&at=5.4.9")
    page.wait_for_selector(VIEWS["Verdicts"])
    page.wait_for_function("document.querySelector('#act-offers h2')?.textContent.includes('layer 5')")
    return page


def tries(page, engine, act: str = "#act-layer-fp16") -> None:
    """A lane is tried, and is at work."""
    engine.free.clear()
    page.locator(act).press("Enter")
    page.wait_for_selector("#act-status [data-act=cancel]")


@pytest.mark.long("journey", sample=0)
def test_a_lane_that_joins_takes_back_no_view_nor_token(page, engine):
    tries(page, engine)
    page.locator("[data-view=texts]").click()
    page.evaluate("window.kvq.pick({ token: 3 })")
    page.wait_for_function(f"{TOKEN} === '3'")
    engine.free.set()
    page.wait_for_function(f"{LEGEND} === 4")
    page.wait_for_function("document.querySelector('#act-status').textContent.includes('Computed')")
    page.wait_for_selector("#view-texts:not(.behind)")
    assert page.evaluate(TOKEN) == "3" and page.evaluate("window.kvq.view") == "texts"
    page.wait_for_selector("#act-tried [data-tried]")
    page.locator("#act-tried [data-act=undo]").click()
    page.wait_for_function(f"{LEGEND} === 3")
    assert page.evaluate(TOKEN) == "3" and page.evaluate("window.kvq.view") == "texts"


@pytest.mark.long("page", sample=0)
def test_a_lane_that_is_undone_while_another_is_computed_stays_undone(page, engine):
    tries(page, engine)
    engine.free.set()
    page.wait_for_selector("#act-tried [data-tried]")
    first = page.locator("#act-tried [data-tried]").get_attribute("data-tried")
    tries(page, engine, "#act-sinks")
    page.locator("#act-tried [data-act=undo]").click()
    page.wait_for_function(f"{LEGEND} === 3")
    engine.free.set()
    page.wait_for_selector(f"#act-tried [data-tried]:not([data-tried='{first}'])")
    page.wait_for_function(f"{LEGEND} === 4")
    assert page.locator("#act-tried [data-tried]").count() == 1


@pytest.mark.long("journey", sample=0)
def test_a_lane_that_joins_comes_not_over_another_run(page, engine):
    tries(page, engine)
    unfold(page)
    page.locator("#prompt textarea").fill("Another run meanwhile")
    run(page)
    page.wait_for_function("document.body.dataset.stage == 'answers'")
    engine.free.set()
    wait_status(page, "Done")
    page.wait_for_function(
        f"document.querySelector('#act-status').textContent.includes('among the lanes of run {RUN}')"
    )
    page.wait_for_function("run => !location.search.includes(run)", arg=RUN)
    page.wait_for_timeout(1000)
    assert RUN not in page.url


@pytest.fixture
def step(monkeypatch):
    """Holds what draws a run: ``hold`` from the next on, ``drawn`` and ``free`` as they say."""
    draw, hold, drawn, free = layout.finished_cards, threading.Event(), threading.Event(), threading.Event()

    def held(*given, **how):
        if hold.is_set():
            assert free.wait(60)
            drawn.set()
        return draw(*given, **how)

    monkeypatch.setattr(layout, "finished_cards", held)
    yield hold, drawn, free
    free.set()


def touring(open_page, quick, hold):
    page = open_page(f"{quick}/?learn=4")
    page.wait_for_function("document.querySelector('#learn .muted')?.innerText.includes('step 4')")
    page.wait_for_function("document.body.dataset.stage == 'results'")
    page.wait_for_selector("#selected [data-at]", state="attached")
    hold.set()
    page.locator("#learn-next").click()
    return page


@pytest.mark.long("page", sample=0)
def test_a_tour_that_was_ended_does_not_come_back(quick, open_page, step):
    hold, drawn, free = step
    page = touring(open_page, quick, hold)
    page.locator("#learn-close").click()
    page.wait_for_selector("#learn", state="hidden")
    free.set()
    assert drawn.wait(60)
    page.wait_for_timeout(1000)
    assert not page.locator("#learn").is_visible()


@pytest.mark.long("page", sample=0)
def test_a_step_of_the_tour_comes_not_over_a_run_that_was_begun(quick, open_page, step, engine):
    hold, drawn, free = step
    page = touring(open_page, quick, hold)
    unfold(page)
    engine.free.clear()
    page.locator("#prompt textarea").fill("Begun on the tour")
    run(page)
    wait_status(page, "Decoding: 1")
    free.set()
    assert drawn.wait(60)
    page.wait_for_timeout(1000)
    assert page.evaluate("document.body.dataset.stage") == "answers"
    engine.free.set()
    wait_status(page, "Done")
    page.wait_for_function("document.body.dataset.stage == 'results'")
