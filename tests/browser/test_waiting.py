"""Waiting is worth watching: each stage is shown as what it is, tokens arrive in the cards, the rest counts down, what
there is survives Cancel, and whoever waits is told the place in the line."""

import re

import pytest

from tests.browser.pages import answer, run, wait_status

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
COUNTED = (
    """before => Number(document.querySelector("#status .left").innerText.match(/about (\\d+) s left/)[1]) < before"""
)
NOW = "[...document.querySelectorAll('#status .stages .now b')].map(each => each.innerText).join()"


def left(page) -> int:
    return int(re.search(r"about (\d+) s left", page.inner_text("#status .left"))[1])


def asking(open_page, address: str, words: str):
    """A page that is about to run something of its own."""
    page = open_page(address)
    page.wait_for_selector("#lane-row-1")
    page.locator("#prompt textarea").fill(words)
    page.wait_for_function("document.querySelector('#estimate .facts')?.innerText.includes('20 prompt tokens')")
    return page


@pytest.mark.long("page", sample=0)
def test_a_tab_that_is_closed_as_run_is_pressed_leaves_no_run(quick, quick_store, engine, open_page):
    engine.read.clear()
    gone = asking(open_page, quick, "Gone at once")
    run(gone)
    gone.close()
    page = asking(open_page, quick, "Still here")
    run(page)
    page.wait_for_selector("#status .status")
    engine.read.set()
    wait_status(page, "Done")
    kept = [summary.prompt for summary in quick_store.list(500)]
    assert any(prompt.startswith("Still here") for prompt in kept)
    assert not any(prompt.startswith("Gone at once") for prompt in kept)


def test_a_run_shows_what_it_does_from_prefill_to_cancel(quick, engine, open_page):
    for gate in (engine.read, engine.stored, engine.free):
        gate.clear()
    page = asking(open_page, quick, "Watched")
    run(page)
    wait_status(page, "Prefill: 12 of 20 prompt tokens")
    assert page.evaluate(NOW) == "Prefill" and 30 <= left(page) <= 40
    assert "Reads the prompt: 12 of 20 tokens" in answer(page, 0) and "Waits for the prompt" in answer(page, 1)
    page.wait_for_function(COUNTED, arg=left(page))  # while nothing new is told
    engine.read.set()
    wait_status(page, "Encoding the cache of")
    assert page.evaluate(NOW) == "Encode"
    assert answer(page, 1) == "Stores keys and values of the prompt" and "turn" in answer(page, 2)
    engine.stored.set()
    wait_status(page, "Decoding: 1 of 4")
    assert page.evaluate(NOW) == "Decode" and answer(page, 1).strip() == "word"
    waiting = asking(open_page, quick, "Behind it")
    run(waiting)
    assert "1 run ahead of yours" in wait_status(waiting, "Waiting for 1 run")
    assert "Keep this page open" in waiting.inner_text("#status")
    page.locator("#cancel").click()
    wait_status(page, "Cancelled")
    engine.free.set()
    assert "What had arrived stays below" in wait_status(page, "Cancelled after 1 of 4 tokens")
    assert answer(page, 1).strip() == "word" and page.locator("#run").is_enabled()
    wait_status(waiting, "Done")
