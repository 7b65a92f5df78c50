"""Lanes by hand and by keyboard: the editor is where its lane is, in sight, and has the focus."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.browser.conftest import visits
from tests.browser.pages import KEEPS

ORDER = "[...document.querySelectorAll('.lane-row')].map(row => row.innerText.split('\\n')[0])"
ROW = "document.querySelector('#lane-row-1').innerText"
NAMED = "([at, name]) => document.querySelectorAll('.lane-row')[at]?.innerText.startsWith(name)"
pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

# Whether an element is on screen, below the header and the card of Run.
CLEAR = """id => {
  const box = (id ? document.getElementById(id) : document.activeElement).getBoundingClientRect();
  const launch = document.getElementById("launch").getBoundingClientRect();
  const top = Math.max(document.querySelector("header").getBoundingClientRect().bottom, launch.bottom);
  return box.top >= top && box.bottom <= innerHeight;
}"""
FOCUS = "document.activeElement.id"
EDGES = """() => ["header", "#launch", "#lanes"]
  .map(part => document.querySelector(part).getBoundingClientRect().toJSON())
  .concat(document.activeElement.outerHTML.slice(0, 200), document.activeElement.getBoundingClientRect().toJSON())"""


@pytest.fixture(scope="module")
def form(quick, browser) -> Iterator:
    """A page that all tests here change."""
    with visits(browser) as visit:
        page = visit(quick)
        page.wait_for_selector("#lane-row-3")
        yield page


def sized(page, width: int, height: int):
    """The page in a window of that size, at its top with no lane open."""
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function(f"innerWidth == {width}")
    page.evaluate("document.querySelector('#close-lane')?.click()")  # it may be closing already
    page.wait_for_selector("#editor select", state="detached")
    page.evaluate("scrollTo(0, 0)")
    return page


def opens_at(page, row: int) -> None:
    page.wait_for_function(f"{FOCUS} == 'in-lane-method'")
    tops = page.evaluate(
        "ids => ids.map(id => document.getElementById(id).getBoundingClientRect().top)",
        [f"lane-row-{row}", "editor", f"lane-row-{row + 1}"],
    )
    assert tops == sorted(tops), "the editor is between its lane and the next"
    page.wait_for_function(CLEAR, arg=f"lane-row-{row}")
    page.wait_for_function(CLEAR, arg="in-lane-method")


@pytest.mark.long("page", sample=1)
@pytest.mark.parametrize("width, height", [(1280, 720), (390, 800)])
def test_the_editor_opens_at_its_lane_with_the_focus_in_it(form, width, height):
    page = sized(form, width, height)
    for row in (1, 0, 2):
        page.locator(f"#lane-row-{row}").click()
        opens_at(page, row)
    for _ in ("its copy", "itself"):
        page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUS) == "lane-row-2"
    page.keyboard.press("Enter")  # closes it
    page.wait_for_selector("#editor select", state="detached")
    assert page.evaluate(FOCUS) == "lane-row-2"
    page.locator("#add-lane").click()
    page.wait_for_function(f"{FOCUS} == 'in-lane-method'")
    page.wait_for_function(CLEAR, arg="in-lane-method")
    page.locator("#close-lane").click()
    page.wait_for_selector("#editor select", state="detached")
    assert page.evaluate(FOCUS).startswith("lane-row-")


def test_what_the_keyboard_reaches_is_not_under_the_card_of_run(form):
    page = sized(form, 1280, 620)
    page.locator("#lane-row-0").click()
    opens_at(page, 0)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUS))
        if not page.evaluate("document.activeElement.closest('#lanes')"):
            break
        try:
            page.wait_for_function(CLEAR, timeout=5_000)  # the card of Run may have grown just now
        except PlaywrightTimeoutError:
            raise AssertionError(f"Covered: {page.evaluate(EDGES)}") from None
    assert "lane-row-1" in reached and "add-lane" in reached


def test_rules_are_added_edited_moved_and_removed(form):
    page = sized(form, 1280, 900)
    page.locator("#lane-row-0").click()
    opens_at(page, 0)
    assert page.locator(".rule").count() == 0
    page.locator("#add-rule").click()
    page.wait_for_function("document.querySelectorAll('.rule').length == 2")
    page.locator("#in-lane-layers").fill("0-2")
    page.wait_for_function("document.querySelector('#lane-row-0').textContent.includes('layers 0-2 fp16')")
    page.locator(".rule").nth(1).click()
    page.wait_for_function("document.querySelectorAll('.rule')[1].ariaPressed == 'true'")
    page.locator("[data-do=rule-up]").click()
    page.wait_for_function("document.querySelector('#lane-error').textContent.includes('never be reached')")
    page.locator(".rule").nth(1).click()
    page.wait_for_function("document.querySelectorAll('.rule')[1].ariaPressed == 'true'")
    page.locator("[data-do=rule-remove]").click()
    page.wait_for_selector(".rule", state="detached")
    assert page.locator("#lane-error").text_content().strip() == ""


def test_the_keys_of_a_lane_are_centred_in_its_editor(form):
    page = sized(form, 1280, 900)
    page.locator("#lane-row-1").click()
    opens_at(page, 1)
    chosen = page.locator("#in-lane-center")
    before = chosen.input_value()
    chosen.evaluate("e => { e.closest('details').open = true }")
    chosen.select_option(label="mean")
    page.wait_for_function(KEEPS, arg='"center":"mean"')
    page.wait_for_function(f"{ROW}.includes('keys centred on their mean')")
    chosen.select_option(value=before)
    page.wait_for_function(f"!{ROW}.includes('centred')")


def test_a_lane_is_dragged_or_moved_by_the_keyboard_with_the_focus(form):
    page = sized(form, 1280, 1600)
    first, second, third, *rest = page.evaluate(ORDER)
    page.locator("#lane-row-2").hover()
    grip = page.locator(".lane-grip").nth(2)
    grip.hover()
    page.mouse.down()
    top = page.locator("#lane-row-0").bounding_box()
    page.mouse.move(top["x"] + 20, top["y"] + 4, steps=4)
    assert page.locator(".lane-item.before .lane-row").inner_text().startswith(first), "a line says where it would go"
    page.mouse.up()
    page.wait_for_function(NAMED, arg=[0, third])
    assert page.evaluate(ORDER) == [third, first, second, *rest]
    moved = page.locator(".lane-grip").first.get_attribute("id")
    page.locator(".lane-grip").first.focus()
    for place, above in ((1, first), (2, first)):
        page.keyboard.press("ArrowDown")
        page.wait_for_function(
            "([id, at]) => document.activeElement.id == id && document.activeElement.dataset.place == at",
            arg=[moved, str(place)],
        )
        assert page.evaluate(ORDER)[0] == above
    assert page.evaluate(ORDER) == [first, second, third, *rest]
    page.locator(".lane-grip").nth(1).hover()
    page.mouse.down()
    page.mouse.move(top["x"] + 20, top["y"] - 30, steps=2)
    page.keyboard.press("Escape")
    page.mouse.up()
    page.wait_for_timeout(300)
    assert page.evaluate(ORDER) == [first, second, third, *rest], "Escape moves nothing"


def test_a_lane_is_switched_off_and_duplicated_where_it_is(form):
    page = sized(form, 1280, 1600)
    names = page.evaluate(ORDER)
    page.locator("#lane-row-1").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.ariaChecked") == "true"
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('#lane-row-1').innerText.includes('off, not in the run')")
    page.wait_for_function("document.activeElement.ariaChecked == 'false'")
    page.wait_for_function("name => document.querySelector('#differs')?.textContent.includes(name)", arg=f"{names[1]}")
    page.keyboard.press("Space")
    page.wait_for_function("!document.querySelector('#lane-row-1').innerText.includes('off, not')")
    page.locator(".lane-item").nth(1).get_by_role("button", name="Duplicate").click()
    opens_at(page, 2)
    assert page.evaluate(ORDER) == [*names[:2], f"{names[1]} 2", *names[2:]]
    page.locator("#remove-lane").click()
    page.wait_for_function("count => document.querySelectorAll('.lane-row').length == count", arg=len(names))


def test_flags_that_are_pasted_are_a_lane_and_others_are_refused(form):
    page = sized(form, 1280, 1600)
    count = len(page.evaluate(ORDER))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    lines = "llama-server -m M.gguf -fa on  # what's here ends with its line\n  -ctk q8_0 -ctv q4_0"
    page.evaluate("lines => navigator.clipboard.writeText(lines)", lines)
    page.locator("#flags").locator("textarea, input").click()
    page.keyboard.press("Control+V")
    page.wait_for_selector(f"#lane-row-{count}")
    assert page.evaluate(ORDER)[-1] == "K q8_0; V q4_0"
    page.wait_for_function("document.querySelector('#flags :is(textarea, input)').value == ''")
    page.locator("#flags").locator("textarea, input").fill("--kv-cache-dtype fp9")
    page.locator("#flags").locator("textarea, input").press("Enter")
    page.wait_for_function("document.querySelector('#lane-error').innerText.includes(\"no format 'fp9'\")")
    assert len(page.evaluate(ORDER)) == count + 1
    page.locator("#flags").locator("textarea, input").fill("")
    page.locator(f"#lane-row-{count}").click()
    page.locator("#remove-lane").click()
    page.wait_for_selector(f"#lane-row-{count}", state="detached")
