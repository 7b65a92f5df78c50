"""The form outlasts the page: it is there after a reload, on the way back, and when the server returns."""

import pytest

from tests.browser.conftest import visits
from tests.browser.pages import KEEPS, run, unfold, wait_status
from ui.panels.welcome import home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
HOME = home()["run"]
PROMPT = "document.querySelector('#prompt textarea')?.value"
# app.main with the engine that computes nothing; it waits as long as the file named last is there.
STAND_IN = """
import sys, threading, time
from pathlib import Path
import app
from tests.browser.stand_in import Engine, estimate
engine = Engine()
def compare(spec, store):
    engine.free = type("Gate", (), {"wait": lambda self, seconds: wait()})()
    yield from engine.compare(spec, store)
def wait():
    while Path(sys.argv[-1]).exists():
        time.sleep(0.05)
    return True
app.compare, app.estimate, app.warm_up = compare, estimate, lambda *_: None
sys.exit(app.main())
"""


@pytest.fixture
def open_page(browser):
    with visits(browser, reads_console=False) as visit:
        yield visit


def prompted(page, words: str) -> None:
    page.wait_for_function(f"words => {PROMPT} == words", arg=words)


def type_prompt(page, words: str) -> None:
    unfold(page)
    page.locator("#prompt textarea").fill(words)
    page.wait_for_function(KEEPS, arg=words)


@pytest.mark.long("journey", sample=0)
def test_the_form_is_there_after_a_reload(quick, open_page):
    page = open_page(quick)
    page.wait_for_selector("#lane-row-4")
    page.locator("#lane-row-1").click()
    page.locator("#lane-label input").fill("Mine, and wrong")
    page.locator("#in-lane-sink_tokens").evaluate("e => { e.closest('details').open = true }")
    page.locator("#in-lane-sink_tokens").fill("-1")
    page.wait_for_function(KEEPS, arg='"sink_tokens":-1')
    page.get_by_role("button", name="Generation options").click()
    page.locator("#max-new-tokens input").fill("7")
    type_prompt(page, "Kept for later")
    page.reload()
    prompted(page, "Kept for later")
    page.get_by_role("button", name="Generation options").click()
    assert page.locator("#max-new-tokens input").input_value() == "7"
    assert page.locator("#lane-row-1").inner_text().split("\n") == ["Mine, and wrong", "needs a change"]
    assert page.locator("button.lane-row").count() == 8
    stranger = open_page(quick)
    assert stranger.evaluate(PROMPT) != "Kept for later"


@pytest.mark.long("page", sample=0)
def test_what_is_no_draft_is_ignored_and_a_link_means_what_it_says(quick, open_page):
    page = open_page(quick)
    page.wait_for_selector("#lane-row-4")
    usual = page.evaluate(PROMPT)
    type_prompt(page, "Mine")
    page.goto(f"{quick}/?preset=keys-vs-values")
    page.wait_for_function(f"!['', 'Mine', undefined].includes({PROMPT})")
    type_prompt(page, "Changed on a link")
    page.reload()
    prompted(page, "Changed on a link")
    page.goto(f"{quick}/?preset=keys-vs-values")
    page.wait_for_selector("#lane-row-0")
    page.wait_for_function(f"!['', 'Mine', 'Changed on a link', undefined].includes({PROMPT})")
    page.goto(quick)
    prompted(page, "Mine")
    page.goto(f"{quick}/gradio_api/app_id")  # the form's page still keeps what came in last
    nonsense = '{"version": 1, "values": {"prompt": 5}, "lanes": [{}], "rest": {}}'  # more of it without a browser
    page.evaluate("text => Object.keys(localStorage).forEach(key => localStorage.setItem(key, text))", nonsense)
    page.goto(quick)
    prompted(page, usual)


@pytest.mark.long("page", sample=0)
def test_back_leads_to_the_run_before_and_to_the_form(quick, open_page):
    page = open_page(quick)
    page.wait_for_selector("#lane-row-4")
    runs = []
    shown = "run => document.querySelector('#share textarea')?.value.includes(run)"
    for words in ("The first one", "The second one"):
        type_prompt(page, words)
        run(page)
        own = "new URLSearchParams(location.search).get('run')"
        page.wait_for_function(f"runs => {own} && !runs.includes({own})", arg=runs)
        page.wait_for_selector("#verdicts .verdict")
        runs.append(page.evaluate(own))
    page.go_back()
    page.wait_for_function(shown, arg=runs[0])
    prompted(page, "The second one")  # as it was left there
    page.go_back()
    page.wait_for_function("run => document.querySelector('#legend [data-run]')?.dataset.run == run", arg=HOME)
    prompted(page, "The first one")
    assert page.evaluate("new URLSearchParams(location.search).get('run')") is None
    page.go_forward()
    page.wait_for_function(shown, arg=runs[0])


@pytest.mark.long("page", sample=0)
def test_a_preset_differs_from_the_run_until_it_is_run(quick, open_page):
    page = open_page(f"{quick}/?preset=first-look")
    page.wait_for_selector("#lane-row-4")
    run(page)
    page.wait_for_selector("#verdicts .verdict")
    unfold(page)
    page.locator("#preset-keys-vs-values").click()
    page.wait_for_selector("#differs .differs-box")
    assert "Form differs from this run" in page.locator("#differs").inner_text()
    page.locator("#preset-first-look").click()
    page.wait_for_selector("#differs .differs-box", state="detached")
    page.locator("#preset-keys-vs-values").click()
    page.locator("[data-form-run]").click()
    page.wait_for_selector("#differs .differs-box", state="detached")
    wait_status(page, "Done")


@pytest.mark.long("page", sample=0)
def test_a_lost_server_is_told_and_the_page_recovers(start_server, stop_server, open_page, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    address = start_server("-c", STAND_IN, str(hold))
    page = open_page(address)
    page.wait_for_selector("#lane-row-4")
    type_prompt(page, "Typed before")
    run(page)
    wait_status(page, "Decoding: 1")
    stop_server(address)
    page.wait_for_selector("#away .notice.bad", timeout=60_000)
    assert "does not answer" in page.locator("#away").inner_text()
    assert not page.locator("#cancel").is_visible() and page.evaluate("document.getElementById('launch').inert")
    page.locator("#prompt textarea").fill("Typed while it was away")
    hold.unlink()
    assert start_server("-c", STAND_IN, str(hold), PORT=address.rpartition(":")[2]) == address
    page.wait_for_selector("#away .notice.warn", timeout=60_000)
    assert "started again" in page.locator("#away").inner_text()
    prompted(page, "Typed while it was away")
    assert page.locator("button.lane-row").count() == 8
    run(page)
    wait_status(page, "Done")
    assert page.locator("#away").count() == 0


@pytest.mark.long("page", sample=0)
def test_a_moment_without_network_is_no_new_server(quick, open_page):
    page = open_page(quick)
    page.wait_for_selector("#lane-row-4")
    page.context.set_offline(True)
    page.wait_for_selector("#away .notice.bad", timeout=60_000)
    page.context.set_offline(False)
    page.wait_for_selector("#away", state="detached", timeout=60_000)
    page.wait_for_function("sessionStorage.getItem('kvq-lost') === null")
    # Gradio may load the page again of itself, which is no new server either.
    page.wait_for_function("document.getElementById('launch')?.inert === false")
    assert page.locator("#away").count() == 0
