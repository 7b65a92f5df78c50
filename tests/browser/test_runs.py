"""One run after another on one page: whatever they hold, the page shows the last one, and it whole."""

import asyncio
import threading

import pytest

from tests.browser.pages import open_view, run, unfold, wait_status
from ui.service.jobs import follow

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


def lanes(page, count: int) -> None:
    """Add or remove lanes until there are so many."""
    unfold(page)
    while (now := page.locator("button.lane-row").count()) != count:
        if now < count:
            page.locator("#add-lane").click()
        else:
            page.locator("#lane-row-0").click()
            page.locator("#remove-lane").click()
        page.wait_for_function("before => document.querySelectorAll('button.lane-row').length != before", arg=now)


def whole(page, count: int) -> None:
    """The link, the cards with their verdicts, the scorecard and the views of a finished run of so many lanes."""
    page.wait_for_selector("#card-0 [data-t]")
    page.wait_for_function("document.querySelector('#run').textContent.trim() == 'Run'")
    page.wait_for_selector("#share textarea", state="attached")
    page.wait_for_function("n => document.querySelectorAll('#verdicts .verdict').length == n", arg=count)
    assert page.locator(".answer .stats").count() == count + 1
    assert all(page.locator(f"#card-{n + 1} i[title]").count() for n in range(count))
    table = page.locator("#score-table").inner_text()
    assert "Noise floor" in table and all(page.locator(f"#card-{n + 1} h3").inner_text() in table for n in range(count))
    assert "run=" in page.locator("#share textarea").input_value()


@pytest.mark.long("journey", sample=0)
def test_a_run_with_lanes_after_one_without_is_shown_whole(quick, open_page):
    page = open_page(quick)
    lanes(page, 0)
    run(page)
    wait_status(page, "Done")
    whole(page, 0)
    link = page.locator("#share textarea").input_value()
    page.get_by_role("tab", name="Text", exact=True).click()
    page.wait_for_selector("#view-texts:not(.behind) .words p")
    assert "without lanes" in page.locator("#view-texts .words p").inner_text()
    lanes(page, 1)
    run(page)
    page.wait_for_function(
        "link => ![link, undefined].includes(document.querySelector('#share textarea')?.value)", arg=link
    )
    page.wait_for_selector("#view-texts:not(.behind) .plot:not(.behind) .main-svg")
    open_view(page, "Verdicts")  # drawn when it is opened again
    whole(page, 1)


@pytest.mark.long("page", sample=0)
def test_what_comes_after_a_finished_run_leaves_its_cards_as_they_are(quick, open_page, monkeypatch):
    over = threading.Event()

    async def ends_late(job, line):
        async for news in follow(job, line):
            yield news
        while not over.is_set():
            await asyncio.sleep(0.02)

    monkeypatch.setattr("ui.panels.job_panel.follow", ends_late)
    page = open_page(quick)
    lanes(page, 1)
    run(page)
    whole(page, 1)
    over.set()
    lanes(page, 2)  # answered in the same stream, after the end of the run's
    page.wait_for_timeout(300)
    whole(page, 1)
