"""The whole page by the keyboard alone: open it, edit a lane, run, switch lanes, change the view, select, share."""

import pytest

from tests.browser.pages import VIEWS, wait_status

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
MOST = 150  # stops of Tab from one part of the page to the next
AT = "wanted => document.activeElement.matches(wanted)"
SEEN = """() => {
  const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement);
  return (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
}"""


def tab_to(page, wanted: str) -> None:
    """On to the element by Tab alone; every stop on the way can be seen."""
    passed = []
    for _ in range(MOST):
        page.keyboard.press("Tab")
        if page.evaluate(AT, wanted):
            return
        passed.append(page.evaluate("[document.activeElement.id, document.activeElement.className].join(' ')"))
    raise AssertionError(f"Tab does not reach {wanted}: {passed}")


def test_a_visit_from_the_first_key_to_a_link(quick, open_page):
    page = open_page(quick, reading=True)
    page.wait_for_selector(VIEWS["Verdicts"])
    tab_to(page, "[data-form=open]")
    page.keyboard.press("Enter")
    page.wait_for_function(AT, arg="#prompt textarea")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("What did the miller promise?")
    edits_a_lane(page)
    runs(page)
    switches_lanes(page)
    opens_a_view_and_selects(page)
    shares(page)


def edits_a_lane(page) -> None:
    tab_to(page, "#lane-row-0")
    page.keyboard.press("Enter")
    page.wait_for_function(AT, arg="#in-lane-method")
    tab_to(page, "#in-lane-label input, #in-lane-label")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("Mine")
    page.keyboard.press("Tab")
    page.wait_for_function("document.querySelector('#lane-row-0').innerText.includes('Mine')")


def runs(page) -> None:
    tab_to(page, "#run")
    page.keyboard.press("Enter")
    wait_status(page, "Done")
    page.wait_for_function(AT, arg="#answer-said")  # Run and its form are gone: where the answer is, not at the top
    assert not page.locator("#prompt").is_visible()


def switches_lanes(page) -> None:
    page.keyboard.press("Shift+Tab")
    for _ in range(MOST):
        if page.evaluate(AT, "#legend [data-switch]"):
            break
        page.keyboard.press("Shift+Tab")
    lane = page.evaluate("document.activeElement.dataset.switch")
    assert page.evaluate(SEEN)
    page.keyboard.press("Space")
    page.wait_for_function(f"location.search.includes('off={lane}')")
    page.wait_for_selector(f"#card-{int(lane) + 1}", state="hidden")


def opens_a_view_and_selects(page) -> None:
    tab_to(page, "[data-view][aria-selected=true]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#view-texts:not(.behind) #text-forced [data-t]")
    assert page.evaluate(AT, "[data-view=texts]") and page.evaluate(SEEN)
    tab_to(page, "#text-forced [data-tokens]")
    before = page.inner_text("#selected")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("before => document.querySelector('#selected').innerText !== before", arg=before)


def shares(page) -> None:
    for _ in range(2 * MOST):
        if page.evaluate(AT, "[data-share]"):
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#share textarea")
    link = page.locator("#share textarea").input_value()
    assert all(part in link for part in ("run=", "view=texts", "at=", "off="))
