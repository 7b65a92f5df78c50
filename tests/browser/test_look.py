"""The look at a model, from the page: what it found in one line, the layers as bars, a remedy as a lane."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


def test_a_model_is_looked_at_and_a_remedy_becomes_a_lane(server, open_page):
    page = open_page(server)
    page.wait_for_selector("#estimate .facts")  # the model is loaded; what is kept of it is shown with that
    page.wait_for_timeout(1000)
    if page.locator("#look-run").is_visible():
        page.locator("#look-run").click()
    page.wait_for_selector("#look-words details", timeout=90_000)
    assert page.inner_text("#look-words summary >> nth=0") == "No known risk found; measure."
    page.locator("#look-words summary").first.click()
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
