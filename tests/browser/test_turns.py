"""The turns of a conversation in the form: added, edited, removed, pasted as JSON, by hand and by the keyboard."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.spec.links import decode
from tests.browser.conftest import visits

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

BOX = "#conversation textarea"
DRAWN = "count => document.querySelectorAll('[data-turn-text]').length === count"
DRAFT = "document.querySelector('#differs [data-draft]')?.dataset.draft ?? ''"
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "tide", "arguments": {}}}]}


def held(page) -> object:
    return json.loads(page.locator(BOX).input_value() or "null")


def read_by_server(page, talk: list[tuple[str, str]]) -> None:
    """Until the form as the server has it asks that."""
    for _ in range(100):
        draft = page.evaluate(DRAFT)
        messages = (decode(draft).messages if draft else None) or ()
        if [(message.role, message.content) for message in messages] == talk:
            return
        page.wait_for_timeout(200)
    raise AssertionError(f"The server has read {messages}.")


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize("seen", [(1280, "light"), (390, "dark")])
def test_turns_are_added_edited_removed_and_pasted(quick, browser, seen):
    width, theme = seen
    with visits(browser) as visit:
        page = visit(f"{quick}/?__theme={theme}", width=width, height=900)
        prompt = page.locator("#prompt textarea").input_value()
        page.locator("#options button").first.click()
        page.locator("#turns-add").click()
        page.wait_for_function(DRAWN, arg=1)
        assert page.locator("#prompt textarea").input_value() == ""
        assert held(page) == [{"role": "user", "content": prompt}], "what is asked already is the first turn"
        page.keyboard.type(" And then?")
        page.locator("#turns-add").press("Enter")
        page.keyboard.type("It turns.")
        page.locator("#turns-add").press("Enter")
        page.keyboard.type("Why?")
        talk = [("user", f"{prompt} And then?"), ("assistant", "It turns."), ("user", "Why?")]
        assert held(page) == [{"role": role, "content": text} for role, text in talk]
        read_by_server(page, talk)
        page.locator("#turns-scored").check()
        assert held(page)["score_turns"] == "all"
        page.locator("#turns-scored").uncheck()
        page.locator("[data-turn-role='0']").select_option("system")
        page.locator("[data-turn-gone='1']").press("Enter")
        assert held(page) == [{"role": "system", "content": f"{prompt} And then?"}, {"role": "user", "content": "Why?"}]
        assert page.evaluate("document.activeElement.dataset.turnGone") == "1"
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        if width == 1280:
            found = Axe().run(page, context={"include": [["#turns"]]}).response["violations"]
            assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
        page.locator(BOX).fill(
            json.dumps([{"role": "user", "content": "Tide?"}, CALL, {"role": "tool", "content": "3"}])
        )
        page.wait_for_function(DRAWN, arg=3)
        assert "calls tide" in page.locator("#turns").inner_text()
        page.locator("[data-turn-text='2']").fill("4 m")
        assert held(page)[1:] == [CALL, {"role": "tool", "content": "4 m"}], "what is not drawn stays as it is"
        for _ in range(3):
            page.locator("[data-turn-gone='0']").click()
        assert held(page) is None and page.locator("#prompt textarea").input_value() == "4 m"
        page.locator(BOX).fill("[{")
        page.wait_for_selector("#turns small")
        assert page.locator(BOX).input_value() == "[{", "what is half written is left alone"
