"""Some tokens of an answer brushed: the browser computes what the analysis does, everywhere, and the link says it."""

import base64
import json
import re
from dataclasses import asdict
from html import unescape

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.arrays import array
from tests.browser.pages import open_view
from tests.support.span_figures import Span, span_figures, span_mean
from tests.support.ui_record_factory import make_run
from ui.figures.damage import damage_grid
from ui.html.along_data import along_data, as_json
from ui.html.numbers import percent, plural, significant
from ui.html.scripts import part
from ui.html.verdict import near_ties

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SHIPPED = packaged_store().load(example_ids()["five-ideas"])
CODE = example_ids()["qwen-keys"]  # with acceptances
COMPUTED = f"""([json, spans]) => {{ {part("numbers")} {part("interval")} {part("span")}
    const run = readAlong(json);
    return spans.map(([first, last]) => figuresOf(run, first, last));
}}"""
MEANT = f"""([steps, spans]) => {{ {part("numbers")} {part("interval")} {part("span")}
    steps.values = unpacked(steps.values);
    return spans.map((span) => meanOfSteps(steps, ...span));
}}"""


def broken_run():
    """A lane with an infinite loss, one that quantized nothing, and one that failed."""
    record, arrays = make_run(3, scored=70, tokens=200)
    arrays["lane/0/kld"][5] = float("inf")
    record.lanes[1].flags = ["never_engaged"]
    record.lanes[2].status = "failed"
    return record, arrays


def run_alike():
    record, arrays = make_run(1, scored=60)
    arrays["lane/0/kld"][:] = 0.25
    return record, arrays


RUNS = {  # made when a test asks: to collect the tests needs none
    "shipped": (lambda: SHIPPED, [(0, 63), (1, 55), (12, 20), (7, 7), (0, 0), (63, 63)]),
    "code": (lambda: packaged_store().load(CODE), [(0, 63), (4, 60)]),
    "long": (lambda: make_run(8, scored=500, tokens=900), [(0, 500), (1, 499), (20, 290), (300, 500)]),
    "broken": (broken_run, [(1, 70), (1, 5)]),
    "alike": (run_alike, [(1, 60)]),
}


@pytest.fixture(scope="module")
def blank(browser):
    page = browser.new_page()
    yield page
    page.close()


def flat(figures) -> dict[str, object]:
    """Of the analysis as the browser names it."""
    found = {name: value for name, value in asdict(figures).items() if name not in ("verdict", "tail")}
    found |= {"flip_rate": figures.flip_rate, "word": figures.verdict.word, "tone": figures.verdict.tone}
    return found | ({} if figures.tail is None else asdict(figures.tail))


@pytest.mark.parametrize("name", RUNS)
def test_both_sides_compute_the_same_of_the_same_spans(blank, name):
    made, spans = RUNS[name]
    record, arrays = made()
    json_text = unescape(as_json(along_data(record, arrays)))
    for (first, last), found in zip(spans, blank.evaluate(COMPUTED, [json_text, spans]), strict=True):
        for at, row in enumerate(found["lanes"]):
            expected = flat(span_figures(record, arrays, at, Span(first, last)))
            got = {**row, **row.pop("verdict"), **(row.pop("tail") or {})}
            for key, value in expected.items():
                if isinstance(value, float) and np.isfinite(value):
                    assert got[key] == pytest.approx(value, rel=1e-6, abs=1e-6), (name, at, first, last, key)
                elif not isinstance(value, float):
                    assert got[key] == value, (name, at, first, last, key)


@pytest.mark.parametrize("measure", ["score", "attention"])
def test_both_sides_make_the_same_map_of_a_span(blank, measure):
    record, arrays = SHIPPED
    spans = [(1, 63), (10, 20), (33, 33), (2, 3)]
    for lane, steps in enumerate(steps_of(measure)):
        values, edges = decoded(steps)
        exact, every = grid_of(lane, measure)
        at = [place for place, (start, _) in enumerate(every) if (start, start + 1) in edges]
        assert len(at) >= min(50, len(every)), "nearly every step of a run of this size has a bin of its own"
        own = [place for place, edge in enumerate(edges) if edge[1] == edge[0] + 1]
        assert np.abs(values[own] - exact[at]).max() <= 0.51 * steps["scale"]
        for (first, last), found in zip(spans, blank.evaluate(MEANT, [steps, spans]), strict=True):
            expected = span_mean(values, edges, Span(first, last))
            assert (found is None) == (expected is None)
            if expected is not None:
                assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


def steps_of(measure: str) -> list[dict]:
    """What the lanes' maps are sent with."""
    traces = json.loads(damage_grid(*SHIPPED, measure, "key", 0, 0).to_json())["data"]
    return [trace["meta"]["steps"] for trace in traces]


def decoded(steps: dict) -> tuple[np.ndarray, list[tuple[int, int]]]:
    dtype, data = steps["values"]["dtype"], base64.b64decode(steps["values"]["bdata"])
    values = np.frombuffer(data, f"<{dtype}").reshape(steps["shape"]) * steps["scale"]
    return values, [tuple(edge) for edge in steps["edges"]]


def grid_of(lane: int, measure: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """(steps, KV heads, layers) of the run, exact."""
    record, arrays = SHIPPED
    values = array(arrays, f"lane/{lane}/{({'score': 'delta_mean', 'attention': 'attention_kl'})[measure]}")
    by_step = (np.moveaxis(values, -1, 0) if measure == "score" else values).astype(np.float64)
    steps = range(len(by_step)) if measure == "score" else record.capture.attention_steps
    grid = by_step.reshape(*by_step.shape[:2], record.environment.kv_heads, -1).mean(-1).transpose(0, 2, 1)
    return grid, [(step, step + 1) for step in steps]


def opened(open_page, address: str, width: int = 1280):
    page = open_page(address, width=width, reading=True)
    page.wait_for_selector("#where .view:not(.behind) .words", state="attached")  # whichever the link opens
    page.wait_for_function("document.querySelector('.along .num[data-number=kld]')?.textContent")
    return page


def drag(page, place: str, start: float, end: float) -> None:
    page.locator(place).first.evaluate("e => e.scrollIntoView({block: 'center', behavior: 'instant'})")
    box = page.locator(place).first.bounding_box()
    y = box["y"] + min(40, box["height"] / 2)
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=6)
    page.mouse.up()


def says(page, first: int, last: int, width: int = 1280) -> None:
    """All places say the numbers of these tokens."""
    record, arrays = SHIPPED
    page.wait_for_function(
        "s => document.querySelector('.along-said').innerText.startsWith(s)", arg=f"Tokens {first} to {last}:"
    )
    for lane in range(len(record.lanes)):
        found = span_figures(record, arrays, lane, Span(first, last))
        kld, size = significant(found.kld_mean, 2), percent(found.stored_bytes / found.fp16_bytes)
        assert page.locator(f".along [data-of='{lane}'] [data-number=kld]").inner_text() == kld
        assert page.locator(f"#legend [data-of='{lane}'] [data-number=kld]").inner_text() == kld
        assert page.locator(f"#legend [data-of='{lane}'] [data-number=size]").inner_text() == size
        assert page.locator(f"#card-{lane + 1} [data-number=size]").inner_text() == size
        assert page.locator(f"#card-{lane + 1} [data-number=verdict]").inner_text() == found.verdict.word
        table = f"#verdicts [data-of='{lane}'] td[data-number=flip_rate]:not([data-floor])"
        assert page.locator(table).text_content() == percent(found.flip_rate, 1)
        if near_ties(record.lanes[lane]):
            ties = f"{found.near_tie_flips} of {plural(found.flips, 'flip')} near a tie in the reference."
            for place in (f"#card-{lane + 1}", f"#verdicts [data-of='{lane}']"):
                assert page.locator(f"{place} [data-number=near_ties]").text_content() == (
                    ties if found.flips else "No flips."
                )
    assert f"span={first}-{last}" in page.url


def test_what_is_of_a_span_and_what_of_the_whole_answer_is_said(quick, open_page):
    page = opened(open_page, f"{quick}/?run={SHIPPED[0].id}&span=12-20")
    open_view(page, "Rate–distortion")
    added = "([place, part]) => getComputedStyle(document.querySelector(place), part).content"
    csv = "[data-figure-menu=rate-kld] [data-take=csv]"
    whole = {("#scorecard h2", "::after"): " · of the whole answer", (csv, "::after"): ", whole answer"}
    for place, said in {**whole, (".answer .stats :has(> [data-number=size]) > span", "::before"): "own "}.items():
        assert page.evaluate(added, list(place)) == f'"{said}"'
    open_view(page, "Verdicts")
    says(page, 12, 20)
    assert page.evaluate(added, ["#verdicts .reasons", "::before"]) == '"of the whole answer"'
    assert page.locator("#verdicts .reasons [data-number]").count() == 0, "what is of the span stands apart"
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('[data-whole]')")
    assert page.locator("#card-1 [data-number=near_ties]").text_content() == near_ties(SHIPPED[0].lanes[0])
    assert page.evaluate(added, ["#scorecard h2", "::after"]) == "none"


@pytest.mark.long("page", sample=0)
def test_a_span_is_brushed_everywhere_and_the_link_carries_it(quick, open_page):
    page = opened(open_page, f"{quick}/?run={SHIPPED[0].id}")
    before = page.locator("#legend").inner_text()
    drag(page, ".along-track", 9.5 / 63, 59.5 / 63)
    says(page, 10, 60)
    open_view(page, "Text")
    page.wait_for_function("document.querySelector('#plot-kld-strips .js-plotly-plot')?.layout.xaxis.range[1] == 60.5")
    page.keyboard.press("Escape")
    page.wait_for_function("!location.search.includes('span=')")
    assert page.locator("#legend").inner_text() == before and page.locator("[data-whole]").count() == 0
    page.wait_for_function("document.querySelector('#plot-kld-strips .js-plotly-plot').layout.xaxis.range[1] > 63")
    low, high = page.evaluate("document.querySelector('#plot-kld-strips .js-plotly-plot').layout.xaxis.range")
    drag(page, "#plot-kld-strips .nsewdrag", (20 - low) / (high - low), (39.9 - low) / (high - low))
    says(page, 20, 40)
    open_view(page, "Where")
    page.locator("#damage-measure").get_by_text("Score error", exact=True).click()
    page.wait_for_selector("#view-damage :text('Scores (keys × queries)')")
    grid = span_mean(*decoded(steps_of("score")[0]), Span(20, 40))
    drawn = "document.querySelector('#plot-grid-key .js-plotly-plot').data[0].z.flat()"
    page.wait_for_function(f"top => Math.abs(Math.max(...{drawn}) - top) < 1e-6", arg=float(grid.max()))
    page = opened(open_page, page.url)  # the link
    open_view(page, "Verdicts")  # not drawn before, for the link opens another
    says(page, 20, 40)


@pytest.mark.long("page", sample=0)
def test_a_span_is_chosen_by_keyboard_alone_on_a_phone(quick, open_page):
    page = opened(open_page, f"{quick}/?run={SHIPPED[0].id}&__theme=dark", width=390)
    page.locator("#span-first").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("12")
    page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("30")
    page.keyboard.press("Tab")
    says(page, 12, 30)
    assert page.evaluate("document.activeElement.dataset.span") == "clear"
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.along-said').innerText.startsWith('Whole answer')")
    open_view(page, "Text")
    page.locator("#text-forced [data-tokens]").focus()
    page.locator("#pick-token input[type=number]").fill("14")
    page.locator("#pick-token input[type=number]").press("Enter")
    page.wait_for_function("document.querySelector('#top-lists h4')?.innerText == 'Token 14'")
    page.locator("#text-forced [data-tokens]").focus()
    for last in (15, 16, 17):
        page.keyboard.press("Shift+ArrowRight")
        page.wait_for_function("t => document.querySelector('#top-lists h4')?.innerText == `Token ${t}`", arg=last)
        page.wait_for_function(
            "s => document.querySelector('.along-said').innerText.startsWith(s)", arg=f"Tokens 14 to {last}:"
        )
    assert page.locator("#text-forced .in-span").count() == 4
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert serious(page) == []


@pytest.mark.long("journey", sample=0)
def test_the_worst_tokens_are_walked_by_keys_and_each_says_why(quick, open_page):
    page = opened(open_page, f"{quick}/?run={SHIPPED[0].id}&span=5-60")
    says(page, 5, 60)
    record, arrays = SHIPPED
    lane = int(page.locator("#worst-lane").input_value())
    kld = arrays[f"lane/{lane}/kld"].numpy()
    order = [int(at) + 1 for at in np.argsort(-kld, kind="stable") if 5 <= at + 1 <= 60]
    page.locator("#along-title").click()
    for key, place in (("n", 0), ("n", 1), ("p", 0)):
        page.keyboard.press(key)
        page.wait_for_function(
            "t => document.querySelector('#pick-token input[type=number]').value == t", arg=str(order[place])
        )
        told = page.locator(".along-why").inner_text()
        assert (
            told.startswith(("1st", "2nd")[place])
            and f"token {order[place]} “" in told
            and record.lanes[lane].label in told
        )
    layer, head = (page.locator(f"#pick-{name} input[type=number]").input_value() for name in ("layer", "head"))
    assert f"layer {layer}, query head {head}:" in told
    page.locator("#worst-kind").select_option("sure")
    page.locator("[data-worst='1']").click()
    flips = (arrays[f"lane/{lane}/same_top"] == 0) & (
        arrays["reference/margin"] > record.lanes[lane].metrics.near_tie_margin
    )
    there = [token for token in order if flips[token - 1]]
    page.wait_for_function(
        "n => document.querySelector('.along-why').innerText.startsWith(`1st worst of ${n} `)", arg=len(there)
    )
    assert f"token {there[0]} " in page.locator(".along-why").inner_text()
    assert re.search(r"it would write .* \(\d+\xa0%\) for", page.locator(".along-why").inner_text())
    assert serious(page) == []
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"innerWidth == {width}")
        for place in ("#along .along-row", "#legend"):
            cell = page.locator(f"{place} [data-number=kld]").first
            assert cell.evaluate("cell => (cell.textContent = '0.0022', cell.scrollWidth <= cell.clientWidth)")


def serious(page) -> list:
    found = Axe().run(page).response["violations"]
    return [
        (each["id"], [node["target"] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
