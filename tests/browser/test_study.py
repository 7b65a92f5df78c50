"""The place Study with the real model: a file of prompts, cancelled, gone on with, a cell opened, shared."""

import json
from itertools import count

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.spec import parse_spec
from kvq_core.spec.links import encode
from tests.browser.conftest import visits

pytestmark = [pytest.mark.browser, pytest.mark.real_model, pytest.mark.timeout(280)]

PROMPTS = ("Why is the sky blue?", "Name a river.", "What is salt?", "Say hello.", "Count to three.")
LANES = [{"method": "kivi"}, {"method": "per_token"}]
DRAWN = "#plot-study-{} .main-svg"


TRIES = count()  # one that is tried again has other prompts: the cells of these are there


def prompts_file() -> dict:
    more = " Please." * next(TRIES)
    rows = [{"id": f"p{at}", "prompt": text + more, "group": "short"} for at, text in enumerate(PROMPTS)]
    lines = [json.dumps(row) for row in rows]
    text = "\n".join([*lines[:2], '{"prompt": ', *lines[2:]])
    return {"name": "prompts.jsonl", "mimeType": "application/jsonl", "buffer": text.encode()}


def status(page, words: str) -> None:
    page.wait_for_function(
        "words => document.querySelector('#study-status')?.innerText.match(words)", arg=words, timeout=90_000
    )


@pytest.mark.long("journey", sample=0)
def test_a_file_is_studied_cancelled_gone_on_with_opened_and_shared(server, browser):
    with visits(browser, reads_console=False) as visit:  # the page is left for the run of a cell
        journey(server, visit)


def journey(server, open_page) -> None:
    form = encode(parse_spec({"prompt": "-", "lanes": LANES}))
    page = open_page(f"{server}/?study&c={form}")
    page.wait_for_selector("#study-welcome h1")
    assert not page.locator("#page").is_visible() and page.locator("[data-place=study][aria-current=page]").is_visible()
    second = page.context.new_page()
    second.goto(f"{server}/?study")
    second.wait_for_selector("#studies .muted")
    ask(page)
    run(page)
    shared = page.url
    own = shared.split("study=")[1].split("&")[0]
    second.wait_for_selector(f"#studies a[href$='{own}']")  # the list is the browser's, in every tab
    second.close()
    assert len(own) == 16
    read(page)
    open_cell(page)
    other = open_page(shared, width=390)
    other.wait_for_selector("#study-answer h1")
    assert "over 5 prompts" in other.locator("#study-answer").inner_text()
    assert other.evaluate("document.scrollingElement.scrollWidth") <= 390


def ask(page) -> None:
    page.locator("#study-way input[value=File]").check(force=True)
    page.locator("[data-file=study-file]").set_input_files(prompts_file())
    page.wait_for_selector("#study-estimate .refused")
    assert "line 3" in page.locator("#study-estimate").inner_text()
    page.locator("#study-new-tokens input").fill("8")
    page.locator("#study").get_by_label("Leave out lines that cannot be read").check()
    page.wait_for_selector("#study-estimate .estimate")
    told = page.locator("#study-estimate").inner_text()
    assert "5 cells" in told and "Left out: prompts.jsonl, line 3" in told and "GB of memory" in told
    assert page.locator("#study-of-compare li").count() == len(LANES)


def run(page) -> None:
    page.locator("#study-start").click()
    status(page, "Cell [2-4] of 5")  # a busy browser may draw none of them but one
    assert page.locator("#study-live tbody tr").count() == len(LANES)
    page.locator("#study-cancel").click()
    status(page, "Cancelled")
    page.locator("#study-go-on").click()
    status(page, "All cells are done")
    page.wait_for_function("document.querySelector('#study-answer h1')?.innerText.includes('over 5 prompts')")
    page.wait_for_function("document.querySelector('#study-estimate').innerText.includes('5 cells, all of them there')")


def read(page) -> None:
    for name in ("forest", "pareto", "map"):
        page.locator(f"#plot-study-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(DRAWN.format(name))
    assert page.locator(".study-table >> nth=0").locator("tbody tr").count() == len(LANES)
    assert "short" in page.locator("#study-groups").inner_text()
    with page.expect_download() as rows:
        page.get_by_role("link", name="Rows (Parquet)").or_(page.get_by_role("button", name="Rows (Parquet)")).click()
    assert rows.value.suggested_filename.endswith("rows.parquet")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def open_cell(page) -> None:
    """By the keyboard; a click in the map picks the prompt of its row."""
    last = page.locator("#plot-study-map .ytick text").last.text_content().strip()
    box = page.locator("#plot-study-map .nsewdrag").bounding_box()
    page.mouse.click(box["x"] + 8, box["y"] + box["height"] - 8)
    page.wait_for_function("name => document.querySelector('#study-prompt input').value.startsWith(name)", arg=last[:2])
    page.locator("#study-open").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/?run=*", timeout=90_000)
    page.wait_for_selector("#answer h1")
    assert page.locator("#legend li[data-of]").count() == len(LANES)
