"""The look at a model, from the page: what it found in one line, the layers as bars, a remedy as a lane."""

import pytest

LINE = "#look-words summary"
REMEDIES = "document.querySelector('#look-words').innerText.includes('Remedies, measured')"
pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


@pytest.mark.long("page", sample=0)
def test_a_model_is_looked_at_and_a_remedy_becomes_a_lane(server, open_page):
    page = open_page(server)
    page.wait_for_selector("#estimate .facts")  # the model is loaded; what is kept of it is shown with that
    line = page.locator("#look-words summary").first
    line.click()
    page.wait_for_selector("#look-words details[open]")
    if page.locator("[data-look]").count():  # nobody has looked yet, or not at remedies
        page.locator("[data-look]").click()
        page.wait_for_function(REMEDIES, timeout=90_000)
    page.wait_for_function(f"document.querySelector('{LINE}').innerText.startsWith('No known risk')", timeout=90_000)
    assert "32K × 8: 6.04 GB in fp16" in line.inner_text()
    assert page.locator(".fits tr", has_text="q4_0").inner_text().split("\t")[1:3] == ["1.70 GB", "8,192"]
    if not page.locator("#look-words details[open]").count():
        line.click()
    page.wait_for_selector(".layer-bars b >> nth=29")
    assert page.locator(".layer-bars b.risk").count() == 0
    for words in ("9 query, 3 KV (GQA 3)", "Remedies, measured", "Keys per channel"):
        assert words in page.inner_text("#look-words")
    lanes = page.locator(".lane-row").count()
    page.locator('[data-remedy="0"]').click()
    page.wait_for_selector(f"#lane-row-{lanes}")
    assert "Centre the keys" in page.inner_text(f"#lane-row-{lanes}")
    assert "keys centred on their mean" in page.inner_text(f"#lane-row-{lanes}")
    page.wait_for_selector("#look-words details[open]")  # adding a lane closes nothing
