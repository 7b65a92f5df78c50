"""One figure in a frame: what is under the pointer and the keys is said, light and dark, wide and narrow."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.pipeline.examples import packaged_store
from ui.export.embed import embed

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

RUN = packaged_store().list()[0].id


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
