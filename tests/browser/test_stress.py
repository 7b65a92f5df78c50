"""The dials of stress on the page: told while they are closed, filled by presets, followed by the estimate."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
SAYS = "text => document.querySelector('{where}').innerText.includes(text)"


def wait_for(page, where: str, text: str) -> None:
    page.wait_for_function(SAYS.format(where=where), arg=text)


def test_stress_is_told_while_closed_and_changed_when_open(server, open_page):
    page = open_page(f"{server}/?preset=stress-outliers")
    wait_for(page, "#stress > button", "on · keys × 8 on 2 pairs")
    assert not page.locator("#stress-key_bias input").is_visible()
    page.locator("#stress > button").click()
    page.locator("#stress-key_outlier_scale input").fill("1")
    wait_for(page, "#stress > button", "Stress · off")
    page.locator("#stress-key_bias input").fill("3")
    page.locator("#stress-layers :is(input, textarea)").fill("99")
    wait_for(page, "#estimate", "the model has layers 0 to 29")
    page.locator("#stress-layers :is(input, textarea)").fill("0, 3-4")
    wait_for(page, "#stress > button", "on · bias 3, 3 layers")
    wait_for(page, "#estimate", "prompt tokens")
    page.locator("#preset-first-look").click()  # a preset without stress
    wait_for(page, "#stress > button", "Stress · off")
