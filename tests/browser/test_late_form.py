"""What one does in the form while the server's answer to what one did before is under way is not lost."""

import json
import threading
from collections.abc import Iterator

import pytest

from tests.browser.conftest import visits
from tests.browser.pages import choose_method, run, unfold, wait_status
from ui import layout
from ui.form import filling, lanes_panel

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
SHUT = "document.querySelector('#setup').inert && document.querySelector('#launch').inert"
LABELS = "[...document.querySelectorAll('.lane-row')].map(row => row.innerText.split('\\n')[0])"


class Held:
    """A function of the server that answers when it is let go."""

    def __init__(self, monkeypatch, room, name: str):
        self.free, self.asked, work = threading.Event(), threading.Event(), getattr(room, name)

        def held(*given, **how):
            self.asked.set()
            assert self.free.wait(60)
            return work(*given, **how)

        monkeypatch.setattr(room, name, held)


@pytest.fixture
def hold(monkeypatch) -> Iterator:
    """Holds a function of the server; all are let go in the end."""
    all_of_them: list[Held] = []

    def hold_one(room, name: str) -> Held:
        all_of_them.append(Held(monkeypatch, room, name))
        return all_of_them[-1]

    yield hold_one
    for held in all_of_them:
        held.free.set()


@pytest.fixture
def page(quick, open_page):
    page = open_page(f"{quick}/?preset=first-look")
    page.wait_for_selector("#lane-row-3")
    unfold(page)
    return page


@pytest.mark.long("journey", sample=0)
def test_nobody_writes_in_a_form_before_it_is_filled(quick, page, hold):
    linked = hold(layout, "linked_form")
    other = page.context.new_page()
    other.goto(quick)
    assert linked.asked.wait(60)
    other.wait_for_function(SHUT)
    linked.free.set()
    other.wait_for_function(f"!({SHUT}) && document.querySelector('#prompt textarea').value.length > 9")
    other.close()


@pytest.mark.long("journey", sample=0)
def test_nobody_writes_in_a_form_that_a_preset_fills_and_the_focus_stays(page, hold):
    preset = hold(filling, "preset")
    chip = page.locator(".chip-button").nth(1)
    name = chip.get_attribute("id")
    chip.focus()
    page.keyboard.press("Enter")
    assert preset.asked.wait(60)
    page.wait_for_function(SHUT)
    before = page.locator("#prompt textarea").input_value()
    preset.free.set()
    page.wait_for_function(f"!({SHUT})")
    page.wait_for_function("before => document.querySelector('#prompt textarea').value !== before", arg=before)
    page.wait_for_function("name => document.activeElement.id === name", arg=name)


@pytest.mark.long("journey", sample=0)
def test_a_picker_that_is_left_fills_nothing(page):
    more, lanes = page.get_by_label("More presets"), page.locator("#bundle input")
    before = page.locator("#prompt textarea").input_value()
    more.click()
    page.locator("[role=option]").first.click()
    page.wait_for_function("before => document.querySelector('#prompt textarea').value !== before", arg=before)
    page.wait_for_function(f"!({SHUT})")
    page.locator("#prompt textarea").fill("My own")
    rows = page.evaluate(LABELS)
    for picker in (more, lanes):
        picker.focus()
        page.keyboard.press("Tab")
        page.wait_for_timeout(700)
        assert page.locator("#prompt textarea").input_value() == "My own"
        assert page.evaluate(LABELS) == rows and page.locator("#lane-error").inner_text().strip() == ""
    lanes.click()
    page.locator("[role=option]").nth(1).click()
    page.wait_for_function(f"rows => JSON.stringify({LABELS}) !== rows", arg=json.dumps(rows, separators=(",", ":")))


@pytest.mark.long("journey", sample=0)
def test_lanes_that_are_changed_at_once_are_all_changed(page, hold):
    page.locator("#lane-row-0").click()
    page.wait_for_selector("#in-lane-label")
    lanes = page.locator(".lane-row").count()
    change = hold(lanes_panel, "apply_change")
    page.locator("#in-lane-label").fill("Named")
    assert change.asked.wait(60)
    page.locator("#add-lane").click()
    page.locator(".lane-power").nth(1).click()
    page.locator(".lane-power").nth(2).click()
    page.wait_for_timeout(300)
    change.free.set()
    page.wait_for_function("count => document.querySelectorAll('.lane-row').length === count", arg=lanes + 1)
    page.wait_for_function("document.querySelectorAll('.lane-power[aria-checked=false]').length === 2")
    assert page.evaluate(LABELS)[0] == "Named"


def test_run_waits_for_what_was_changed_in_a_lane(page, hold):
    page.locator("#lane-row-0").click()
    page.wait_for_selector("#in-lane-label")
    change = hold(lanes_panel, "apply_change")
    page.locator("#in-lane-label").fill("In the run")
    assert change.asked.wait(60)
    run(page)
    page.wait_for_timeout(300)
    assert page.locator("#run").inner_text() == "Run", "it waits"
    change.free.set()
    wait_status(page, "Done")
    page.wait_for_function("document.querySelector('#card-1')?.innerText.includes('In the run')")


@pytest.mark.long("journey", sample=0)
def test_what_is_changed_while_another_editor_comes_stands_in_it(page, hold):
    page.locator("#lane-row-0").click()
    page.wait_for_selector("#in-lane-label")
    before = page.locator("#editor [data-revision]").get_attribute("data-revision")
    change = hold(lanes_panel, "apply_change")
    choose_method(page, "Per token")
    assert change.asked.wait(60)
    page.locator("#in-lane-label").fill("Typed meanwhile")
    change.free.set()
    page.wait_for_function(
        "before => document.querySelector('#editor [data-revision]').dataset.revision !== before", arg=before
    )
    page.wait_for_function(f"{LABELS}[0] === 'Typed meanwhile'")
    assert page.locator("#in-lane-label").input_value() == "Typed meanwhile"
    page.locator("#in-lane-label").press_sequentially(" and on")
    page.wait_for_function(f"{LABELS}[0] === 'Typed meanwhile and on'")


def test_what_is_typed_goes_on_in_an_editor_that_came_anew(page, hold):
    page.locator("#lane-row-0").click()
    knob = page.locator("#in-kivi-group_size")
    for before, then in (("", "1"), ("1", "6")):
        revision = page.locator("#editor [data-revision]").get_attribute("data-revision")
        change = hold(lanes_panel, "apply_change")
        page.locator(".lane-power").nth(1).press("Enter")  # after which the editor comes anew
        assert change.asked.wait(60)
        knob.focus()
        change.free.set()
        page.wait_for_function(
            "before => document.querySelector('#editor [data-revision]').dataset.revision !== before", arg=revision
        )
        assert page.evaluate("document.activeElement.id") == "in-kivi-group_size"
        page.keyboard.type(then)
        assert knob.input_value() == before + then
        said = "said => document.querySelector('#lane-row-0').innerText.includes(said)"
        page.wait_for_function(said, arg=f"group {before}{then}")


@pytest.mark.long("journey", sample=0)
def test_changes_of_a_lane_stay_out_of_the_form_that_a_preset_fills(page):
    page.locator("#lane-row-0").click()
    page.wait_for_selector("#in-lane-label")
    page.locator("#in-lane-label").fill("Of the form before")
    page.wait_for_function(f"{LABELS}[0] === 'Of the form before'")
    prompt = page.locator("#prompt textarea").input_value()
    page.locator(".chip-button").nth(1).click()
    page.wait_for_function("before => document.querySelector('#prompt textarea').value !== before", arg=prompt)
    page.locator("#lane-row-1").click()
    page.wait_for_selector("#in-lane-label")
    assert "Of the form before" not in page.evaluate(LABELS)


def test_numbers_that_follow_a_choice_are_there_at_once(quick, browser):
    """By the browser alone: an answer of the server's could come after another number was typed."""
    with visits(browser, reads_console=False) as visit:  # what is asked of the server is held for good
        page = shut_off(visit, f"{quick}/?study", "study-left")
        page.locator("#study-way input[value=Tasks]").check(force=True)
        page.wait_for_function("document.querySelector('#study-new-tokens input').value !== '64'")
        page = shut_off(visit, f"{quick}/?decide", "decide-left")
        page.locator("#decide-room input").nth(1).check(force=True)
        page.wait_for_function("document.querySelector('#decide-size :is(input, textarea)').value === '8GB'")
        page.locator("#decide-room input").last.check(force=True)
        page.wait_for_selector("#decide-size", state="hidden")


def shut_off(visit, address: str, form: str):
    """A page whose form is filled, and that asks the server in vain from then on."""
    page = visit(address)
    page.wait_for_function("form => window.kvqVisit && !document.getElementById(form).inert", arg=form)
    page.route("**/queue/join*", lambda route: None)
    return page
