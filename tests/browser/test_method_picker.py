"""The picker of a lane's method, by hand and by the keyboard: opened, searched, folded out, chosen from."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.methods import OFTEN, methods
from tests.browser.conftest import visits
from tests.browser.pages import choose_method

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

PICKER, SEARCH = "#in-lane-method", ".methods [type=search]"
AT = "wanted => document.activeElement.matches(wanted)"
AT_METHOD = "name => document.activeElement.dataset.method === name"
IN_SIGHT = "[...document.querySelectorAll('[data-method]')].filter(e => e.checkVisibility()).map(e => e.dataset.method)"
SAYS = "title => document.querySelector('#in-lane-method b').textContent === title"
LANE = "words => document.querySelector('#lane-row-0').innerText.includes(words)"
LANES = "[...document.querySelectorAll('.lane-row')].map(row => row.textContent)"


@pytest.fixture
def form(request, quick, browser) -> Iterator:
    """The editor of the first lane, open in a window of that width and theme."""
    width, theme = getattr(request, "param", (1280, "light"))
    with visits(browser) as visit:
        page = visit(f"{quick}/?__theme={theme}", width=width, height=900)
        page.locator("#lane-row-0").click()
        page.wait_for_function(AT, arg=PICKER)
        yield page


@pytest.mark.long("journey", sample=0)
def test_it_shows_eight_and_folds_the_others_until_they_are_searched(form):
    assert form.evaluate(IN_SIGHT) == [] and not form.locator(SEARCH).is_visible()
    form.locator(PICKER).click()
    form.wait_for_function(AT, arg=SEARCH)
    assert form.evaluate(IN_SIGHT) == list(OFTEN)
    form.locator(".method-group > summary", has_text="Deployed").click()
    assert "bf16" in form.evaluate(IN_SIGHT)
    form.locator(SEARCH).fill("ZIPcache")
    assert form.evaluate(IN_SIGHT) == ["zipcache"], "a name, in whatever case"
    form.locator(SEARCH).fill("heavy hitters")
    assert form.evaluate(IN_SIGHT) == ["h2o"], "what a method does"
    assert form.locator(".methods [role=status]").inner_text() == f"1 of {len(methods())}; Enter takes H2O."
    form.locator(SEARCH).fill("token int8 head")
    assert form.evaluate(IN_SIGHT) == ["int8_per_token_head"], "words in any order"
    form.locator(SEARCH).fill("no such cache")
    assert form.evaluate(IN_SIGHT) == []
    assert form.locator(".methods [role=status]").inner_text() == "No method like “no such cache”."
    form.locator(SEARCH).fill("")
    assert form.evaluate(IN_SIGHT) == list(OFTEN) and form.locator(".methods [role=status]").inner_text() == ""


def test_a_method_is_found_and_chosen_by_the_keyboard_alone(form):
    form.keyboard.press("ArrowDown")  # as a closed choice opens
    form.wait_for_function(AT, arg=SEARCH)
    form.keyboard.press("ArrowDown")
    assert form.evaluate(AT_METHOD, "kivi")
    form.keyboard.press("ArrowDown")
    form.keyboard.press("ArrowDown")
    assert form.evaluate(AT_METHOD, "svdq")
    form.keyboard.press("Escape")
    assert form.evaluate(AT, PICKER) and not form.locator(SEARCH).is_visible()
    form.keyboard.press("Enter")
    form.wait_for_function(AT, arg=SEARCH)
    form.keyboard.type("per token")
    form.keyboard.press("ArrowDown")
    assert form.evaluate(AT_METHOD, "per_token"), "what is named so comes before what is described so"
    form.keyboard.press("ArrowUp")
    assert form.evaluate(AT_METHOD, "per_channel")
    form.keyboard.press("Enter")
    form.wait_for_selector("#in-per_channel-bits")
    form.wait_for_function(LANE, arg="Per channel")
    form.wait_for_function(AT, arg=PICKER)
    assert form.evaluate(SAYS, "Per channel") and not form.locator(SEARCH).is_visible()


@pytest.mark.long("journey", sample=0)
def test_a_choice_changes_its_lane_alone_and_the_same_again_nothing(form):
    first, *others = form.evaluate(LANES)
    choose_method(form, "GEAR")
    form.wait_for_function(LANE, arg="GEAR")
    form.wait_for_function(AT, arg=PICKER)
    _, *same = form.evaluate(LANES)
    assert same == others
    revision = form.locator("#editor [data-revision]").get_attribute("data-revision")
    form.locator(PICKER).click()
    form.locator(".method-group > summary", has_text="Baselines").click()
    form.locator("[data-method=gear]").click()
    assert form.evaluate(AT, PICKER) and form.evaluate(SAYS, "GEAR")
    form.wait_for_timeout(500)
    assert form.locator("#editor [data-revision]").get_attribute("data-revision") == revision


def test_each_rule_has_its_own(form):
    form.locator("#add-rule").click()
    form.wait_for_function("document.querySelectorAll('.rule').length == 2")
    form.locator(".rule").nth(1).click()
    form.wait_for_selector('.editor [data-place="rules.1.method"]', state="attached")
    before = form.locator(".rule").nth(0).inner_text()
    choose_method(form, "ZipCache")
    form.wait_for_function("document.querySelectorAll('.rule')[1].textContent.includes('zipcache')")
    form.wait_for_function(SAYS, arg="ZipCache")
    assert form.locator(".rule").nth(0).inner_text() == before
    assert form.locator('.editor [data-place="rules.1.method"]').input_value() == "zipcache"


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize("form", [(1280, "dark"), (390, "light"), (390, "dark")], indirect=True)
def test_it_fits_and_is_accessible_open_and_searched(form):
    form.locator(PICKER).click()
    for words in ("", "per token", "no such cache"):
        form.locator(SEARCH).fill(words)
        found = Axe().run(form, context="#editor").response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        assert form.evaluate("document.documentElement.scrollWidth <= innerWidth")
        box = form.locator(".methods-box").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= form.viewport_size["width"]
