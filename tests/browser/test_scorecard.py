"""The scorecard in a browser: sorted by number, and taken away as CSV and as the whole record."""

import csv
import io
import json

import pytest

from kvq_core.record.store import open_store
from tests.support.ui_record_factory import make_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

KLD = {"Lane 0": 0.2, "Lane 1": 3e-5, "Lane 2": 12.0}  # as text, 12 and 3e-5 would stand elsewhere
LANES = (
    "() => [...document.querySelectorAll('#score-table [role=row]')].slice(1)"
    ".map(row => row.querySelector('[role=gridcell], td')?.innerText.trim())"
)


@pytest.fixture(scope="module")
def stored(store_folder) -> str:
    record, arrays = make_run(lanes=3)
    for lane in record.lanes:
        lane.metrics.kld_mean = KLD[lane.label]
    record.noise_floor.metrics.kld_mean = 1e-7
    record = record.model_copy(update={"id": "5c0ecad5c0ecad00"})
    open_store(store_folder).save(record, arrays)
    return record.id


def test_columns_are_sorted_by_number_and_the_scorecard_and_the_record_downloaded(stored, server, open_page):
    page = open_page(f"{server}/?run={stored}")
    page.wait_for_selector("#verdicts .verdict")
    header = page.locator("#score-table th[title='KLD mean']").first
    ascending = ["Noise floor", "Lane 1", "Lane 0", "Lane 2"]
    for order, lanes in (("Sort ascending", ascending), ("Sort descending", ascending[::-1])):
        header.locator(".header-content").click()  # its menu shows under the pointer
        header.locator(".cell-menu-button").click()
        page.get_by_role("menuitem", name=order).click()
        page.wait_for_function(f"lanes => JSON.stringify(({LANES})().slice(-4)) == JSON.stringify(lanes)", arg=lanes)
    with page.expect_download() as table:
        page.locator("#download-csv").click()
    rows = list(csv.DictReader(io.StringIO(table.value.path().read_text())))
    assert table.value.suggested_filename == f"{stored}-scorecard.csv"
    assert {row["lane"]: float(row["kld_mean"]) for row in rows} == {"Noise floor": 1e-7, **KLD}
    with page.expect_download() as whole:
        page.locator("#download-json").click()
    data = json.loads(whole.value.path().read_text())
    assert data["id"] == stored and [lane["metrics"]["kld_mean"] for lane in data["lanes"]] == list(KLD.values())
