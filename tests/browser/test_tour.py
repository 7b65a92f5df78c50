"""The guided tour: its words, the sliders and the figures in sight say the same at every moment."""

import base64

import numpy as np
import pytest

from kvq_core.pipeline.examples import packaged_store
from tests.browser.conftest import visits
from ui.html.colors import DIVERGING, rgb
from ui.panels.tour import LAB, TOY, shipped_ids, tour
from ui.panels.toy import BITS, keys, said_of, table
from ui.selection import read_selection, start

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
# Looks once a frame at what a person can see.
WATCH = r"""(steps) => {
  const seen = (element) => element.checkVisibility({ visibilityProperty: true });
  const held = (name) => Number(document.querySelector(`#pick-${name} input[type=number]`).value);
  window.disagreements = new Set();
  window.looks = 0;
  const look = () => {
    requestAnimationFrame(look);
    const title = document.querySelector("#learn h3")?.innerText;
    const said = document.querySelector("#selected")?.innerText.match(/Layer (\d+) · query head (\d+) .* token (\d+) /);
    if (!steps[title] || !said || !seen(document.querySelector("#where"))) return;
    window.looks += 1;
    const sliders = `${held("layer")} ${held("head")} ${held("token")}`;
    const differs = (what, text) => window.disagreements.add(`${title}: ${what} ${text}, sliders ${sliders}`);
    if (steps[title] !== sliders) differs("words", steps[title]);
    if (said.slice(1).join(" ") !== sliders) differs("selection", said.slice(1).join(" "));
    for (const text of document.querySelectorAll("#where .plot .xtitle")) {
      const layer = text.textContent.match(/layer (\d+)/)?.[1];
      if (!layer || layer === said[1] || !seen(text)) continue;
      const slot = text.closest(".slot").querySelector("h3").innerText;
      differs(slot, `layer ${layer}`);
    }
  };
  look();
}"""


def expected() -> dict[str, str]:
    """Layer, head and token of each step by its title."""
    found = {}
    for step in tour():
        record, arrays = packaged_store().load(shipped_ids()[step.example])
        at = vars(start(record, arrays)) | step.selection
        at = read_selection(record, at["layer"], at["head"], at["token"])
        found[step.title] = f"{at.layer} {at.head} {at.token}"
    return found


PIXELS = """(() => {
  const canvas = document.getElementById("toy-stored");
  const { width, height } = canvas;
  return { width, height, data: [...canvas.getContext("2d").getImageData(0, 0, width, height).data] };
})()"""
IN_SIGHT = """figure => {
  const box = document.getElementById(`plot-${figure}`)?.getBoundingClientRect();
  const words = document.getElementById("learn").getBoundingClientRect();
  return box && words.top >= 0 && box.top >= words.bottom && box.top + 100 <= innerHeight;
}"""


def arrived(page, number: int) -> None:
    """Where the page shows that step: in its words and its address, with the figure in sight and ringed."""
    step = tour()[number - 1]
    page.wait_for_function("title => document.querySelector('#learn h3')?.innerText === title", arg=step.title)
    page.wait_for_function(f"location.search === '?learn={number}'")
    if step.figure == TOY:
        page.wait_for_selector("#toy[data-state]")
        return
    if step.figure == LAB:
        page.wait_for_selector("#learn [data-lab][href=lab]")
        return
    page.wait_for_function(IN_SIGHT, arg=step.figure)
    page.wait_for_selector(f".slot.ringed #plot-{step.figure}")
    assert page.locator(".ringed").count() == 1


def test_the_toy_draws_what_the_methods_computed_and_its_action_is_ticked_off(server, open_page):
    page = open_page(f"{server}/?learn=1")
    arrived(page, 1)
    assert page.locator(".ringed").count() == 0 and page.locator(".tour-action.tried").count() == 0
    slider = page.locator("#toy-bits")
    slider.focus()
    for way, place in (("per_token", 1), ("per_channel", 1), ("per_channel", 4)):
        page.locator(f"#toy [value={way}]").check()
        slider.fill(str(place))
        setting = table()[f"{way} {BITS[place]}"]
        assert page.inner_text(".toy-said") == said_of(way, BITS[place]).replace("\xa0", " ")
        shown = page.evaluate("[...document.querySelectorAll('.toy-bars b')].map(bar => Number(bar.innerText))")
        assert shown == list(setting.attention)
        codes = np.frombuffer(base64.b64decode(setting.codes), np.int8).reshape(len(keys().keys), -1)
        pixels = page.evaluate(PIXELS)
        assert (pixels["width"], pixels["height"]) == codes.shape[::-1]
        at = np.unravel_index(np.abs(codes.astype(int)).argmax(), codes.shape)
        low, high = (DIVERGING[0][1], DIVERGING[-1][1])
        extreme = pixels["data"][4 * int(np.ravel_multi_index(at, codes.shape)) :][:3]
        assert np.abs(np.array(extreme) - rgb(high if codes[at] > 0 else low)).max() < 40
    page.wait_for_selector(".tour-action.tried")
    page.locator("#learn-next").click()
    arrived(page, 2)
    assert page.locator(".tour-action.tried").count() == 0
    page.locator("#learn-next").click()
    arrived(page, 3)
    page.locator("#legend [data-switch]").first.click()
    page.wait_for_selector(".tour-action.tried")
    page.locator("#learn-close").click()
    page.wait_for_function("!document.querySelector('.ringed')")


@pytest.mark.long("page", sample=0)
def test_back_leads_to_the_step_before_and_closing_to_its_run(server, browser):
    last = len(tour())
    with visits(browser, reads_console=False) as visit:  # Back leaves a page whose figures may be under way
        page = visit(f"{server}/?learn={last - 1}")
        arrived(page, last - 1)
        page.locator("#learn-next").click()
        arrived(page, last)
        page.go_back()
        title = tour()[-2].title
        page.wait_for_function("title => document.querySelector('#learn h3')?.innerText === title", arg=title)
        page.locator("#learn-close").click()
        page.wait_for_function("location.search.startsWith('?run=')")


@pytest.mark.long("journey", sample=0)
@pytest.mark.parametrize("number", [5, 9])
def test_a_link_to_a_step_shows_its_figure(server, open_page, number):
    """Of views that are not the one a page opens with, and of figures above and below others."""
    page = open_page(f"{server}/?learn={number}")
    page.wait_for_selector(f"#plot-{tour()[number - 1].figure}:not(.behind) .main-svg")
    page.wait_for_function(IN_SIGHT, arg=tour()[number - 1].figure)
    page.wait_for_timeout(1500)  # what is drawn meanwhile does not push it away
    assert page.evaluate(IN_SIGHT, tour()[number - 1].figure)


@pytest.mark.long("page", sample=0)
def test_on_a_phone_the_figure_is_a_button_away(server, open_page):
    page = open_page(f"{server}/?learn=4", width=390)
    page.locator("#learn [data-show]").click()
    page.wait_for_function(
        "(box => box && box.top >= 0 && box.top + 100 <= innerHeight)"
        f"(document.querySelector('#plot-{tour()[3].figure}')?.getBoundingClientRect())"
    )


@pytest.mark.long("page", sample=0)
def test_words_sliders_and_figures_agree_at_every_moment_of_the_tour(server, open_page):
    page = open_page(f"{server}/?learn=1")
    page.emulate_media(reduced_motion="reduce")  # what is hidden is hidden at once
    page.evaluate(WATCH, expected())
    for number, step in enumerate(tour(), 1):
        arrived(page, number)
        page.wait_for_selector(f"#views [data-view={step.view}][aria-selected=true]")
        if step.view != "verdicts":
            page.wait_for_selector(f"#view-{step.view}:not(.behind) .plot:not(.behind) .main-svg")
        if number < len(tour()):
            page.locator("#learn-next").click()
    assert page.evaluate("[...window.disagreements]") == []
    assert page.evaluate("window.looks") > 10 * len(tour())
