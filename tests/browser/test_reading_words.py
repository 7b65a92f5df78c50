"""What a token reads, on the prompt's own words, and the answer replayed: both as the run kept them."""

import io
import re
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from kvq_core.analysis.replay import movement
from kvq_core.pipeline.examples import example_ids, packaged_store
from tests.browser.pages import open_view
from tests.browser.test_span import opened as opened_along
from tests.browser.test_span import serious
from ui.html.reading import reading_data

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

RECORD, ARRAYS = packaged_store().load(example_ids()["five-ideas"])
LAYER, HEAD = RECORD.capture.layers[0], RECORD.capture.heads[1]
STEP = RECORD.capture.attention_steps[5]
READY = "document.querySelector('.reading-said')?.textContent"

DRAWN = "!document.querySelector('.reading-said').closest('.view.behind')"


def opened(open_page, address: str, token: int, width: int = 1280, theme: str = "light"):
    at = f"&view=attention&at={LAYER}.{HEAD}.{token}&__theme={theme}"
    page = open_page(f"{address}/?run={RECORD.id}{at}", width=width, reading=True)
    page.wait_for_function(READY)
    page.wait_for_function("t => document.querySelector('#replay-token').value == t", arg=str(token))
    page.wait_for_function(DRAWN)  # what is drawn again takes the focus away
    return page


def changes(lane: int, look: int, head: int = 1) -> np.ndarray:
    """(bins,) of the attention, lane less reference, of one of the heads that were kept."""
    names = (f"lane/{lane}", "reference")
    rows = [ARRAYS[f"{name}/attention_rows"][look, 0, head].double().numpy() for name in names]
    own, base = ((row / 255) ** 2 for row in rows)
    return own - base


def test_the_prompts_words_are_tinted_and_the_most_lost_are_named(quick, open_page):
    page = opened(open_page, quick, STEP + 1)
    lane = 1
    page.locator("#reading-lane").select_option(str(lane))
    found, texts = changes(lane, 5), reading_data(RECORD, ARRAYS, LAYER, HEAD, [lane])["texts"]
    lost = next(at for at in np.argsort(found) if texts[at].strip())
    said = page.locator(".reading-said").inner_text()
    assert said.startswith(f"Choosing token {STEP + 1} "), "this step was looked at"
    assert f"{RECORD.lanes[lane].label} reads less of “{texts[lost].strip(' ').replace(chr(10), '⏎')}”" in said
    grounds = page.locator(".reading-text i").evaluate_all("is => is.map(i => i.style.getPropertyValue('--ground'))")
    assert (
        len(grounds) == len(texts)
        and grounds[lost]
        and {at for at, of in enumerate(grounds) if of} == set(np.flatnonzero(np.abs(found) >= 5e-4).tolist())
    )
    title = page.locator(".reading-text i").nth(lost).get_attribute("title")
    assert title.startswith("“") and "points" in title and RECORD.lanes[lane].label in title
    assert "The mill at Carrow Point" in page.locator(".reading-text").inner_text(), "text, not a tokenizer's spelling"
    page.locator("#reading-mode").select_option("reference")
    base = (ARRAYS["reference/attention_rows"][5, 0, 1].double().numpy() / 255) ** 2
    tinted = page.locator(".reading-text i").evaluate_all(
        "is => is.filter(i => i.style.getPropertyValue('--ground')).length"
    )
    assert tinted == int((base >= 5e-4).sum())
    assert serious(page) == []
    page.locator("#pick-head input[type=number]").fill(str(RECORD.capture.heads[0]))
    page.keyboard.press("Enter")
    found = changes(lane, 5, head=0)
    lost = next(at for at in np.argsort(found) if texts[at].strip())
    start = f"{RECORD.lanes[lane].label} reads less of “{texts[lost].strip(' ').replace(chr(10), '⏎')}” "
    part = f"(−{abs(100 * found[lost]):.2g} points)"
    page.wait_for_function(
        "said => document.querySelector('.reading-said').textContent.includes(said)", arg=start + part
    )
    assert page.locator(".reading-text i").count() == len(texts), "the words stay where Gradio writes in place"


@pytest.mark.long("page", sample=0)
def test_the_answer_is_replayed_by_keys_and_pauses_where_it_is(quick, open_page):
    page = opened(open_page, quick, 20, width=390, theme="dark")
    slider = page.locator("#replay-token")
    slider.press("ArrowRight")
    page.wait_for_function("document.querySelector('#pick-token input[type=number]').value == '21'")
    missed, said = 20 not in RECORD.capture.attention_steps, page.locator(".reading-said").inner_text()
    assert said.startswith("Attention at token 21 was not kept" if missed else "Choosing token 21 ")
    assert missed == (page.locator(".reading-text i[style]").count() == 0), "no other step stands in for it"
    assert page.locator("#look-words [data-act=map]").inner_text() == "Compute attention at every token"
    keys, values = (movement(RECORD, ARRAYS, 0, kind) for kind in ("key", "value"))
    there = len(RECORD.reference.prompt_token_ids) + 21
    windows = " / ".join(str(there - moved.sink - moved.packed[20]) for moved in (keys, values))
    assert f"window {windows}" in page.locator(".replay-row[data-of='0'] .replay-numbers").inner_text()
    slider.evaluate(
        "s => { s.value = 22; s.dispatchEvent(new Event('input', { bubbles: true })); window.kvq.told('21'); }"
    )
    assert slider.input_value() == "22", "an answer of the token before does not take the move back"
    page.wait_for_function("document.querySelector('#pick-token input[type=number]').value == '22'")
    page.locator("[data-replay=play]").press("Enter")
    assert page.locator("[data-replay=play]").inner_text() == "Pause"
    page.wait_for_function("Number(document.querySelector('#replay-token').value) >= 24")
    page.keyboard.press("Escape")
    stopped = slider.input_value()
    page.wait_for_function("t => document.querySelector('#pick-token input[type=number]').value == t", arg=stopped)
    page.wait_for_timeout(1500)
    assert slider.input_value() == stopped and page.locator("[data-replay=play]").inner_text() == "Play"
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_function("document.querySelector('[data-replay=play]').innerText === 'Next token'")
    page.locator("[data-replay=play]").press("Enter")
    page.wait_for_timeout(1500)
    assert slider.input_value() == str(int(stopped) + 1), "nothing moves by itself where motion is not wanted"
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert serious(page) == []


@pytest.mark.long("journey", sample=0)
def test_the_lane_whose_words_are_shown_is_switched_on(quick, open_page):
    worst = sorted(range(len(RECORD.lanes)), key=lambda at: -float(ARRAYS[f"lane/{at}/kld"].mean()))
    page = open_page(f"{quick}/?run={RECORD.id}&view=attention&off={worst[0]}", reading=True)
    page.wait_for_function(READY)
    pick = page.locator("#reading-lane")
    assert pick.input_value() == str(worst[1])
    assert pick.locator("option:not([hidden])").count() == len(RECORD.lanes) - 1
    at = f"{LAYER}.{HEAD}.{STEP + 1}"
    page = open_page(f"{quick}/?run={RECORD.id}&view=attention&at={at}&off={worst[0]}", reading=True)
    page.wait_for_function(READY)
    page.locator(f"[data-switch='{worst[1]}']").click()
    page.wait_for_function("lane => document.querySelector('#reading-lane').value == lane", arg=str(worst[2]))
    assert RECORD.lanes[worst[2]].label in page.locator(".reading-said").inner_text()


@pytest.mark.long("journey", sample=0)
def test_the_score_map_ends_with_the_two_figures_beside_it(quick, open_page):
    page = open_page(f"{quick}/?run={RECORD.id}&view=damage&at={LAYER}.{HEAD}.{STEP + 1}", reading=True)
    for name in ("score-map", "sinks"):
        page.wait_for_selector(f"#plot-{name} .main-svg")
    ends = (
        "['score-map', 'sinks'].map((name) => document.getElementById(`plot-${name}`).getBoundingClientRect().bottom)"
    )
    one, other = page.evaluate(ends)
    assert abs(one - other) < 12


@pytest.mark.long("journey", sample=0)
def test_a_colour_bar_stays_where_the_address_goes_on_and_its_figure_does_not(quick, open_page):
    page = open_page(f"{quick}/?run={RECORD.id}&view=damage&at={LAYER}.{HEAD}.{STEP + 1}&__theme=light", reading=True)
    bar = page.locator("#plot-sinks .cbfill")
    bar.scroll_into_view_if_needed()
    page.keyboard.press("n")
    page.wait_for_function("at => !location.search.includes(at)", arg=f"at={LAYER}.{HEAD}.{STEP + 1}&")
    with Image.open(io.BytesIO(bar.screenshot())) as drawn:
        assert len(drawn.convert("RGB").getcolors(10_000)) > 40


@pytest.mark.long("journey", sample=0)
@pytest.mark.parametrize("width", [1280, 390])
def test_rows_keep_their_height_while_the_answer_is_replayed(quick, open_page, width):
    page = opened(open_page, quick, STEP + 1, width)
    heights = page.evaluate(
        """last => Array.from({ length: last }, (_, at) => {
            window.kvq.mark(at + 1);
            return [...document.querySelectorAll(".replay-row")].map((row) => row.offsetHeight).join();
        })""",
        len(RECORD.reference.token_ids) - 1,
    )
    assert len(set(heights)) == 1, "or what is read moves under the eye"
    assert page.locator(".replay-rows").evaluate("rows => rows.scrollWidth <= rows.clientWidth")


@pytest.mark.long("journey", sample=0)
@pytest.mark.parametrize("view", ["words", "replay"])
def test_the_code_of_words_and_replay_shows_elsewhere_what_is_shown_here(quick, open_page, view):
    page = opened(open_page, quick, STEP + 1)
    page.locator("#reading-lane").select_option("1")
    menu = page.locator(f"[data-figure-menu={view}]")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menu.locator("summary").click()
    with page.expect_download() as numbers:
        menu.locator("[data-take=csv]").click()
    assert numbers.value.suggested_filename == f"{RECORD.id}-{view}.csv"
    assert f"\r\n{view},".encode() in Path(numbers.value.path()).read_bytes()
    menu.locator("summary").click()
    menu.locator("[data-take=embed]").click()
    page.wait_for_function(
        "view => document.querySelector(`[data-figure-menu=${view}] [data-take=embed]`).textContent === 'Copied'",
        arg=view,
    )
    code = page.evaluate("navigator.clipboard.readText()")
    source, height = re.search(r'src="([^"]+)"', code)[1], int(re.search(r'height="(\d+)"', code)[1])
    label = RECORD.lanes[1].label
    assert source == f"{quick}/embed?run={RECORD.id}&view={view}&at={LAYER}.{HEAD}.{STEP + 1}&lane={quote(label)}"
    said = page.locator(".reading-said").inner_text()
    alone = page.context.new_page()
    alone.set_viewport_size({"width": 760, "height": 900})
    alone.goto(source)
    assert alone.locator("#reading-lane option:checked").inner_text() == label
    assert alone.locator(".reading-said").inner_text() == said
    assert abs(alone.evaluate("document.documentElement.offsetHeight") - height) < 4, "nothing of it is cut"


@pytest.mark.long("journey", sample=0)
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_words_and_replay_are_taken_away_as_pictures(quick, open_page, width, theme):
    page = opened(open_page, quick, STEP + 1, width, theme)

    def drawn(view: str) -> tuple[str, list[ElementTree.Element]]:
        """What the SVG says and its elements, once the PNG is as large and as full of ink."""
        files = []
        for kind in ("svg", "png"):
            page.locator(f"[data-figure-menu={view}] summary").click()
            with page.expect_download() as taken:
                page.locator(f"[data-figure-menu={view}] [data-take={kind}]").click()
            assert taken.value.suggested_filename == f"{RECORD.id}-{view}.{kind}"
            files.append(taken.value.path())
        picture = ElementTree.parse(files[0]).getroot()
        with Image.open(files[1]) as image:
            assert image.size == tuple(2 * int(picture.get(side)) for side in ("width", "height"))
            ink = np.asarray(image.convert("L"), float)
        assert (np.abs(ink - ink[0, 0]) > 64).mean() > 0.03, "texts stand out from the ground"
        parts = list(picture.iter())
        return " ".join(part.text for part in parts if part.tag.endswith("text")), parts

    page.locator("#reading-lane").select_option("1")
    label, said = RECORD.lanes[1].label, page.locator(".reading-said").inner_text()
    texts, parts = drawn("words")
    assert texts.startswith("Attention on the words ") and f"{label}, layer {LAYER}, query head {HEAD}:" in texts
    assert said in texts and "Orange: the lane reads more" in texts
    whole = page.locator(".reading-text").inner_text()
    assert re.sub(r"\s", "", texts).endswith(re.sub(r"\s", "", whole)), "all of it, also what has to be scrolled to"
    grounds = page.locator(".reading-text i").evaluate_all(
        "all => all.filter(i => i.style.getPropertyValue('--ground')).map(i => getComputedStyle(i).backgroundColor)"
    )
    assert len(grounds) > 5 and set(grounds) <= {part.get("fill") for part in parts}
    texts, parts = drawn("replay")
    numbers = page.locator(".replay-row[data-of='1'] .replay-numbers").inner_text()
    assert (
        f"Token {STEP + 1} of " in texts and label in texts and re.sub(r"\s", "", numbers) in re.sub(r"\s", "", texts)
    )
    caches = page.locator(".replay-rows canvas").evaluate_all("all => all.map(canvas => canvas.toDataURL())")
    assert [part.get("href") for part in parts if part.tag.endswith("image")] == caches
    assert page.locator("#reading > [style*='fixed']").count() == 0, "nothing of it stays on the page"


def test_the_view_of_words_is_taken_away_whole(quick, open_page):
    page = opened(open_page, quick, STEP + 1)
    taken = []
    page.on("download", lambda file: taken.append(file.suggested_filename))
    with page.expect_download(lambda file: "replay" in file.suggested_filename):
        page.locator("#export [data-image=svg]").click()
    assert taken == [f"{RECORD.id}-words.svg", f"{RECORD.id}-replay.svg"]


@pytest.mark.long("journey", sample=0)
def test_words_that_were_marked_are_not_brushed_again_by_the_next_click(quick, open_page):
    page = opened_along(open_page, f"{quick}/?run={RECORD.id}")
    ends = page.locator("#card-0 .tokens:visible")
    ends.scroll_into_view_if_needed()
    box = ends.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 8, steps=4)
    page.mouse.up()
    page.wait_for_function("location.search.includes('span=')")
    page.keyboard.press("Escape")
    page.wait_for_function("!location.search.includes('span=')")
    open_view(page, "Text")
    assert "span=" not in page.url and page.locator(".along-said").inner_text().startswith("Whole answer")
