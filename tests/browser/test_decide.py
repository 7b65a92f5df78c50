"""The place Decide with a tiny model: from a file of prompts to the flags, cancelled, gone on with, opened again."""

import html
import json
import re
from itertools import count

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.visitors import visits
from tests.support.study_models import prompt, write_model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(280)]

PROMPTS = 12
TOLERANCE = "0.00001"  # no lane of llama.cpp's keeps within it, so that layers are tried


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))


TRIES = count()  # one that is tried again has other prompts: the runs of these are there


def prompts_file() -> dict:
    first = PROMPTS * next(TRIES)
    rows = [json.dumps({"id": f"p{at}", "prompt": prompt(first + at)}) for at in range(PROMPTS)]
    return {"name": "prompts.jsonl", "mimeType": "application/jsonl", "buffer": "\n".join(rows).encode()}


def status(page, words: str) -> None:
    page.wait_for_function(
        "words => document.querySelector('#decide-status')?.innerText.match(words)", arg=words, timeout=120_000
    )


@pytest.mark.long("journey", sample=0)
def test_from_an_upload_to_the_flags(server, browser, model):
    with visits(browser, reads_console=False) as visit:  # Back leaves a page whose answer may be under way
        journey(server, visit, model)


def journey(server, open_page, model: str) -> None:
    page = open_page(f"{server}/?decide")
    page.wait_for_selector("#decide-welcome h1")
    page.wait_for_selector("#decide-fitting table")
    assert (
        not page.locator("#page").is_visible() and page.locator("[data-place=decide][aria-current=page]").is_visible()
    )
    ask(page, model)
    run(page)
    read(page)
    other = open_page(page.url, width=390)
    other.wait_for_selector("#decide-answer h1")
    assert other.locator("#decide-answer h1").inner_text() == page.locator("#decide-answer h1").inner_text()
    assert other.locator("#decide-tolerance input").input_value() == TOLERANCE, "the questions come with the answer"
    assert other.evaluate("document.scrollingElement.scrollWidth") <= 390


def ask(page, model: str) -> None:
    page.locator("#decide-model input").fill(model)
    page.keyboard.press("Enter")
    page.locator("#decide-way input[value=File]").check(force=True)
    page.locator("[data-file=decide-file]").set_input_files(prompts_file())
    page.locator("#decide-tolerance input").fill(TOLERANCE)
    page.keyboard.press("Enter")
    page.locator("#decide-engine input").click()
    page.get_by_role("option", name="llama.cpp", exact=True).click()
    page.locator("#decide-size textarea, #decide-size input").first.fill("24000")
    page.wait_for_selector("#decide-estimate .refused")
    assert "give a number with its unit, such as 24GB" in page.locator("#decide-estimate").inner_text()
    page.locator("#decide-size textarea, #decide-size input").first.fill("24GB")
    page.wait_for_selector("#decide-estimate .estimate")
    told = page.locator("#decide-estimate").inner_text()
    assert (
        f"{PROMPTS} of {PROMPTS} runs are to be computed" in told and "Layers, where they are tried: 6 passes" in told
    )


def run(page) -> None:
    page.locator("#decide-start").click()
    status(page, f"Computing: [2-9] of {PROMPTS} runs")  # a busy browser may draw none of them but one
    page.locator("#decide-cancel").click()
    status(page, "Cancelled")
    page.locator("#decide-go-on").click()
    status(page, "Decided")
    page.wait_for_selector("#decide-layers-map .layer-map")
    page.wait_for_function("/decide=[0-9a-f]{16}/.test(location.search)")
    page.wait_for_function(
        f"document.querySelector('#decide-estimate').innerText.includes('All {PROMPTS} runs are there')"
    )


def read(page) -> None:
    page.locator("#plot-decide-front").scroll_into_view_if_needed()
    page.wait_for_selector("#plot-decide-front .main-svg")
    for part in ("#decide-untested", "#decide-fits"):
        assert page.locator(part).inner_text().strip(), part
    cells = page.locator("[data-cell]")
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#decide-cell-words .cell-told")
    assert "of layer 1 in" in page.locator("#decide-cell-words").inner_text()
    assert re.match(r"\?c=1\.", page.locator("#decide-cell-words a").get_attribute("href"))
    with page.expect_download() as report:
        page.locator("#decide-downloads").get_by_text("Report (HTML)").click()
    text = report.value.path().read_text(encoding="utf-8")
    assert "<!doctype html>" in text and "Not tested" in text
    assert f'href="{html.escape(page.url.partition("?")[0])}?decide=' in text, "links lead to where the page is"
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    loosen(page)


def loosen(page) -> None:
    """Asked again of the same study with a tolerance that lanes keep: the flags, without a run."""
    before = page.url
    page.locator("#decide-tolerance input").fill("10")
    page.keyboard.press("Enter")
    page.wait_for_function(
        f"document.querySelector('#decide-estimate').innerText.includes('All {PROMPTS} runs are there')"
    )
    page.locator("#decide-start").click()
    page.wait_for_function("before => location.href !== before", arg=before)
    page.wait_for_selector("#decide-answer .copybox")
    assert "llama-server -m M.gguf -fa on -ctk" in page.locator("#decide-answer .copybox textarea").input_value()
    page.go_back()
    page.goto(before)
    page.wait_for_selector("#decide-answer h1")
