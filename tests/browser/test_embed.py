"""One figure in a frame: what is under the pointer and the keys is said, light and dark, wide and narrow."""

from contextlib import contextmanager

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.analysis.replay import movement
from kvq_core.pipeline.examples import example_ids, packaged_store
from ui.export.embed import embed

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

RUN = example_ids()["five-ideas"]


@pytest.mark.long("page", sample=1)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("view", ["kld", "keys"])
def test_a_figure_in_a_frame_says_what_is_under_pointer_and_keys(browser, tmp_path, scheme, width, view):
    (tmp_path / "figure.html").write_text(embed(*packaged_store().load(RUN), view, "https://example.org/"))
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 760})
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto((tmp_path / "figure.html").as_uri())
    said = page.locator("#said")
    answer = said.inner_text()
    page.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    first = said.inner_text()
    assert first != answer and page.locator("svg > circle[fill=none][r='6']").count() == 1
    page.keyboard.press("ArrowRight")
    assert said.inner_text() != first
    page.keyboard.press("Escape")
    assert said.inner_text() == answer
    x, y, text = page.evaluate("JSON.parse(document.getElementById('marks').textContent)[5]")
    spot = page.evaluate(
        """([x, y]) => { const box = document.querySelector("svg").getBoundingClientRect();
        const scale = box.width / document.querySelector("svg").viewBox.baseVal.width;
        return [box.left + x * scale, box.top + y * scale]; }""",
        [x, y],
    )
    page.mouse.move(*spot)
    assert said.inner_text() == text
    serious = [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == [] and complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


@contextmanager
def framed(browser, tmp_path, view: str, scheme: str, width: int, at: dict[str, int], calm: str = "no-preference"):
    """A page of another site with the view in a frame; whatever it complains about fails the test."""
    (tmp_path / "view.html").write_text(embed(*packaged_store().load(RUN), view, "https://example.org/", at))
    (tmp_path / "site.html").write_text('<iframe src="view.html" style="border:0;width:100%;height:740px"></iframe>')
    viewport = {"width": width, "height": 760}
    context = browser.new_context(color_scheme=scheme, viewport=viewport, reduced_motion=calm)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "site.html").as_uri())
    inside = page.frames[1]
    inside.wait_for_selector(".reading-text i")
    yield page, inside
    page.goto((tmp_path / "view.html").as_uri())
    serious = [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == [] and complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_words_in_a_frame_are_tinted_named_and_said_one_by_one(browser, tmp_path, scheme, width):
    record, arrays = packaged_store().load(RUN)
    layer, head, step = record.capture.layers[0], record.capture.heads[0], record.capture.attention_steps[5]
    at = {"layer": layer, "head": head, "token": step + 1}
    with framed(browser, tmp_path, "words", scheme, width, at) as (page, inside):
        worst = max(range(len(record.lanes)), key=lambda lane: record.lanes[lane].metrics.kld_mean)
        assert inside.locator("#reading-lane").input_value() == str(worst)
        own, base = (
            (arrays[f"{of}/attention_rows"][5, 0, 0].double().numpy() / 255) ** 2
            for of in (f"lane/{worst}", "reference")
        )
        tinted = inside.locator(".reading-text i").evaluate_all(
            "all => all.map(i => Boolean(i.style.getPropertyValue('--ground')))"
        )
        assert tinted == (np.abs(own - base) >= 5e-4).tolist()
        assert inside.locator(".reading-said").inner_text().startswith(f"Choosing token {step + 1} ")
        said = inside.locator("#said")
        answer = said.inner_text()
        inside.locator(".reading-text").focus()
        page.keyboard.press("ArrowRight")
        first = said.inner_text()
        assert "positions" in first and "points" in first and inside.locator(".pointed").count() == 1
        page.keyboard.press("ArrowRight")
        assert said.inner_text() not in (first, answer)
        page.keyboard.press("Escape")
        assert said.inner_text() == answer and inside.locator(".pointed").count() == 0
        inside.locator(".reading-text i").nth(1).hover()
        assert said.inner_text() == inside.locator(".reading-text i").nth(1).get_attribute("title")
        assert not inside.locator(".replay").is_visible()


@pytest.mark.long("journey", sample=1)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_replay_in_a_frame_plays_pauses_and_follows_keys(browser, tmp_path, scheme, width):
    record, arrays = packaged_store().load(RUN)
    with framed(browser, tmp_path, "replay", scheme, width, {"token": 20}) as (page, inside):
        slider, play = inside.locator("#replay-token"), inside.locator("[data-replay=play]")
        assert slider.input_value() == "20"
        inside.locator("figcaption").click()
        page.keyboard.press("ArrowRight")
        assert slider.input_value() == "21"
        keys, values = (movement(record, arrays, 0, kind) for kind in ("key", "value"))
        there = len(record.reference.prompt_token_ids) + 21
        windows = " / ".join(str(there - moved.sink - moved.packed[20]) for moved in (keys, values))
        assert f"window {windows}" in inside.locator(".replay-row[data-of='0'] .replay-numbers").inner_text()
        page.keyboard.press(" ")
        assert play.inner_text() == "Pause"
        inside.locator(".replay output", has_text="22 of").wait_for()
        page.keyboard.press(" ")
        assert play.inner_text() == "Play"
        box = inside.locator(".reading-text")
        assert box.evaluate("box => box.scrollTop > 0"), "what is written now is in sight"
        slider.press("End")
        assert slider.input_value() == str(len(record.reference.token_ids) - 1)


def test_the_replay_in_a_frame_does_not_move_by_itself_where_motion_is_not_wanted(browser, tmp_path):
    with framed(browser, tmp_path, "replay", "light", 760, {"token": 20}, "reduce") as (page, inside):
        play = inside.locator("[data-replay=play]")
        assert play.inner_text() == "Next token"
        play.press("Enter")
        page.wait_for_timeout(1500)
        assert inside.locator("#replay-token").input_value() == "21"
