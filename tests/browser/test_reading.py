"""What a reader meets on the page: characters, ticks, legends, links to its parts, and controls by the keyboard."""

from collections.abc import Iterator

import pytest

from kvq_core.claims.board import shipped_boards
from kvq_core.claims.side_by_side import claim_rows
from kvq_core.models import load
from kvq_core.models.text import Pieces, lone_token_text
from kvq_core.record.store import open_store
from kvq_core.spec import DEFAULT_MODEL
from tests.browser.conftest import visits
from tests.browser.pages import FACTS, answer, filled_in, open_view, run, wait_status
from tests.support.ui_record_factory import make_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
ANSWER = "你好，世界。 שלום 👩‍👩‍👧 مرحبا"
OPEN = "[...document.querySelectorAll('[role=combobox]')].filter(e => e.ariaExpanded === 'true').length"
VISIBLE = "selector => document.querySelector(selector).checkVisibility({visibilityProperty: true})"


@pytest.fixture(scope="module")
def stored(store_folder, real_model) -> str:
    """A run whose answers are in several scripts; its lanes should name the world, and one does not."""
    tokenizer = load(DEFAULT_MODEL).tokenizer
    record, arrays = make_run(lanes=2)
    ids = tokenizer.encode(ANSWER, add_special_tokens=False)
    pieces = Pieces(tokenizer).extend(ids)
    for row in (record.reference, *record.lanes):
        row.token_ids, row.tokens, row.text = ids, list(pieces), ANSWER
        row.finish = "length"
    record.lanes[1].text = "no"
    for lane in record.lanes:
        lane.metrics.first_divergence = None
    record.vocabulary.update({id: lone_token_text(tokenizer, id) for id in ids})
    record.spec["expect"] = "世界"
    arrays["lane/1/attention_kl"][:, 11, 4] = 50.0
    record = record.model_copy(update={"id": "ab5c" * 4})
    open_store(store_folder).save(record, arrays)
    return record.id


def opened(open_page, server, stored, width=1280, theme="light"):
    page = open_page(f"{server}/?run={stored}&__theme={theme}", width=width)
    page.wait_for_selector("#verdicts .verdict")
    page.wait_for_selector("#where .words p")
    return page


@pytest.fixture(scope="module")
def unrun(server, browser) -> Iterator:
    """A page on which nothing was run."""
    with visits(browser) as visit:
        yield visit(f"{server}/?preset=first-look")


def test_links_to_results_wait_for_them(unrun):
    for name in ("Scorecard", "Views"):
        link = unrun.locator("header nav a", has_text=name)
        assert link.get_attribute("aria-disabled") == "true" and link.get_attribute("href") is None


def test_claims_of_both_models_stand_side_by_side_and_flips_alone(unrun):
    rows, page = claim_rows(shipped_boards()), unrun
    page.get_by_role("button", name="What the papers claim").click()
    page.wait_for_selector("table.claims")
    judged = page.locator("table.claims").first  # below it stand those about time
    shown = judged.locator(":scope > tbody > tr:visible")  # a cell may hold a map
    assert shown.count() == len(rows) and judged.locator(":scope > tbody > tr > td:visible").count() == 4 * len(rows)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"innerWidth == {width}")
        names = judged.locator("b.of:visible").count()  # said in every cell where no head says them
        assert names == (2 * len(rows) if width == 390 else 0)
    page.locator("#claims-shown label", has_text="Flips").click()
    page.locator("table.claims tr.same").first.wait_for(state="hidden")
    assert shown.count() == sum(row.flips for row in rows) > 0
    assert shown.locator(".badge.bad").count() == shown.count()
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"innerWidth == {width}")
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.long("page", sample=0)
def test_a_run_through_the_page_ticks_its_answers(server, open_page):
    """The field of the form reaches the record."""
    page = filled_in(open_page, server, FACTS + "Write the word tide.", 8)
    page.get_by_role("button", name="Generation options").click()
    page.locator("#expect :is(input, textarea)").fill("xylophone")
    run(page)
    wait_status(page, "Done")
    page.wait_for_selector("#card-2 .badge.expected")
    assert page.locator("#cards .badge.expected").all_inner_texts() == ["✗ xylophone"] * 3


@pytest.fixture(scope="module")
def reading(stored, server, browser) -> Iterator:
    """One page with the run, which the tests from here on read one after another."""
    with visits(browser) as visit:
        yield opened(visit, server, stored)


def test_answers_are_ticked_and_the_run_opens_where_it_hurts(reading):
    page = reading
    marks = [page.locator(f"#card-{card} .badge.expected").inner_text() for card in range(3)]
    assert marks == ["✓ 世界", "✓ 世界", "✗ 世界"]
    assert "missing in Lane 1" in page.locator("#view-verdicts .words").first.inner_text()
    assert "Layer 11 · query head 4" in page.locator("#selected").inner_text()


def test_a_slider_shows_its_focus(reading):
    page = reading
    page.locator("#pick-layer input[type=number]").focus()
    page.keyboard.press("Tab")
    style = page.evaluate(
        "(() => { const s = getComputedStyle(document.activeElement);"
        " return [document.activeElement.type, s.outlineStyle, s.outlineWidth]; })()"
    )
    assert style == ["range", "solid", "2px"]


def test_the_scale_above_the_answers_follows_what_colours_them(reading):
    page = reading
    assert page.evaluate(VISIBLE, ".of-kld") and not page.evaluate(VISIBLE, ".of-flips")
    page.locator("#view-color").get_by_text("Flips", exact=True).click()
    page.wait_for_function("!document.querySelector('.of-kld').checkVisibility()")
    assert page.evaluate(VISIBLE, ".of-flips")
    assert "KLD" not in page.locator("#toolbar .legend").inner_text()


@pytest.mark.long("journey", sample=0)
def test_every_view_says_the_lanes_once(reading):
    page = reading
    for name in ("Where", "Rate–distortion", "Query subspace"):
        open_view(page, name)
        assert page.locator("#legend .lane-switch:visible").count() == 2
        page.wait_for_timeout(300)
        named = page.locator("#where .legendtext:visible").all_text_contents()
        assert not [text for text in named if "Lane" in text], name


def test_links_to_results_keep_the_run(reading, stored):
    page = reading
    for name, part in (("Views", "where"), ("Scorecard", "scorecard"), ("History", "history")):
        page.locator("header nav a", has_text=name).click()
        page.wait_for_function(
            "part => Math.abs(document.getElementById(part).getBoundingClientRect().top - 64) < 90"
            " || scrollY + innerHeight >= document.scrollingElement.scrollHeight - 2",
            arg=part,
        )
        assert f"run={stored}" in page.url and page.locator("#card-2").is_visible()
        assert page.evaluate("document.activeElement.id") == part


def test_characters_of_several_tokens_are_whole_and_walked_token_by_token(reading):
    page = reading
    assert answer(page, 0) == answer(page, 1) == ANSWER
    open_view(page, "Text")
    assert page.locator("#text-free .tokens").inner_text() == ANSWER
    page.locator("#text-forced [data-t='0 1']").click()
    page.wait_for_function("document.querySelector('#top-lists h4')?.innerText == 'Token 0'")
    assert "“你”" in page.locator("#selected").inner_text()
    page.locator("#text-forced [data-tokens]").focus()
    for token in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        page.wait_for_function("t => document.querySelector('#top-lists h4')?.innerText == `Token ${t}`", arg=token)
        outlined = page.evaluate(
            "getComputedStyle([...document.querySelectorAll('#text-forced [data-t]')]"
            f".find(e => e.dataset.t.split(' ').includes('{token}'))).outlineStyle"
        )
        assert outlined == "solid"
    assert "“好”" in page.locator("#selected").inner_text()


def test_dropdowns_close_when_tabbed_past(reading):
    page = reading
    open_view(page, "Text")
    for name in ("model", "text-lane", "text-other"):
        page.locator(f"#{name} input").focus()
        page.wait_for_function(f"{OPEN} == 1")
        page.keyboard.press("Tab")
        page.evaluate("document.querySelector('#view-csv').focus()")  # the next may be a dropdown, too
        page.wait_for_timeout(500)  # it was opened again after it had been closed
        page.wait_for_function(f"{OPEN} == 0")
        assert page.locator("[role=listbox]:visible").count() == 0, name
