"""A run that is a file, opened from a disk without a network: it says the record's numbers, follows what is selected
and brushed, by pointer and keys, light and dark, wide and narrow."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.carried import MOST_BYTES, carried
from tests.browser.visitors import visits
from ui.export.page import filed
from ui.html.numbers import significant
from ui.selection import start

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
GRID, SHOWN = "keys-or-values", "first-sight-mended"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder, store, made = tmp_path_factory.mktemp("files"), packaged_store(), {}
    for name in (GRID, SHOWN):
        run = example_ids()[name]
        made[name] = folder / f"{name}.html"
        made[name].write_bytes(filed(*store.load(run), store.files(run)))
    return made


@pytest.fixture
def opened(browser, files):
    """Opens a file offline; whatever it complains about or asks for fails the test."""
    complaints, contexts = [], []

    def open_file(name: str, scheme: str = "light", width: int = 1280):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or complaints.append(asked.url))
        page.goto(files[name].as_uri())
        page.wait_for_selector(".along-row b:not(:empty)")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert complaints == []


def test_the_file_is_the_run_and_small(files):
    for name, file in files.items():
        data = file.read_bytes()
        assert len(data) <= MOST_BYTES and carried(data, "it").record.id == example_ids()[name]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_it_can_be_read_by_everybody(opened, scheme, width):
    page = opened(SHOWN, scheme, width)
    serious = [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == [] and page.evaluate("document.scrollingElement.scrollWidth") <= width
    grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 28, 39)"}
    assert page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor") == grounds[scheme]
    parts = page.locator("h2").all_inner_texts()
    assert {"ANSWERS", "ALONG THE ANSWER", "INSIDE THE CACHE", "SCORECARD", "REPRODUCE"} <= {p.upper() for p in parts}
    assert page.locator(".pictures svg").count() == 4 and page.locator(".tradeoff .point").count() == 8


def test_its_numbers_are_the_records(opened):
    record, _ = packaged_store().load(example_ids()[SHOWN])
    page = opened(SHOWN)
    for index, lane in enumerate(record.lanes):
        kld = significant(lane.metrics.kld_mean, 2)
        assert page.locator(f".along-row[data-of='{index}'] [data-number=kld]").inner_text() == kld
        row = page.locator(
            "#scores-title ~ .scroll tbody tr", has=page.locator(f"th:text-is({json.dumps(lane.label)})")
        )
        assert significant(lane.metrics.kld_mean) in row.locator("td").all_inner_texts()
        line = page.locator(f".lines [data-of='{index}'] .line")
        at = lane.metrics.first_divergence
        assert line.locator(".d").count() == (at is not None)
        assert line.inner_text().startswith("the same text" if at is None else f"token {at}")
        if at is not None:
            assert line.locator(".d").inner_text().strip() in lane.text


def test_a_span_and_a_token_are_followed_by_numbers_words_and_caches(opened):
    record, arrays = packaged_store().load(example_ids()[SHOWN])
    page = opened(SHOWN)
    begins = start(record, arrays).token
    assert page.locator(".replay output").inner_text().startswith(f"{begins} of ")
    page.locator("#span-first").fill("5")
    page.locator("#span-last").fill("12")
    page.locator("#span-last").press("Enter")
    for index in range(len(record.lanes)):
        mean = float(arrays[f"lane/{index}/kld"][4:12].double().mean())
        shown = page.locator(f".along-row[data-of='{index}'] [data-number=kld]").inner_text()
        assert shown == significant(mean, 2)
    page.keyboard.press("Escape")
    assert "Whole answer" in page.locator(".along-said").inner_text()
    page.locator("#card-0 [data-t='7']").click()
    assert page.locator(".replay output").inner_text().startswith("7 of ")
    said = page.locator(".reading-said").inner_text()
    assert said.startswith("Choosing token 7 ") or "at token 7 was not kept" in said
    page.locator("#card-0 .tokens").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".replay output").inner_text().startswith("8 of ")
    page.keyboard.press("n")
    assert page.locator(".along-why").inner_text().startswith("1st worst of ")
    page.locator("#view-text").get_by_text("Same tokens").click()
    assert page.locator("#card-1 .tokens i.o").first.is_hidden()


def test_a_figure_says_what_is_under_the_keys(opened):
    page = opened(GRID)
    figure = page.locator(".pictures figure").first
    figure.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert figure.locator(".said").inner_text()
    page.keyboard.press("Escape")
    assert not figure.locator(".said").inner_text()


DROP = """([name, text]) => {
  const file = new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, {type: "text/html"});
  const held = new DataTransfer();
  held.items.add(file);
  const told = {bubbles: true, cancelable: true, dataTransfer: held};
  document.body.dispatchEvent(new DragEvent("drop", told));
}"""


@pytest.fixture
def leaving(browser):
    """A page that is left for another, and that a server refuses a file."""
    with visits(browser, reads_console=False) as visit:
        yield visit


@pytest.mark.parametrize("way", ["chosen", "dropped"])
def test_a_file_is_opened_by_a_page_and_a_foreign_one_refused(quick, leaving, files, tmp_path, way):
    page, other, run = leaving(quick), tmp_path / "other.html", example_ids()[GRID]
    other.write_text("<p>another page</p>")
    page.locator("#opens label").wait_for()  # once lanes stand above it

    def give(file: Path) -> None:
        if way == "chosen":
            page.locator("#open-file").set_input_files(file)
        else:
            page.evaluate(DROP, [file.name, b64encode(file.read_bytes()).decode()])

    give(other)
    page.wait_for_function("document.getElementById('open-said').textContent.includes('carries no run')")
    give(files[GRID])
    page.wait_for_url(f"**/?run={run}", timeout=60_000)
