"""The page in a real browser, on the real model."""

from collections.abc import Iterator

import pytest

from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from kvq_core.spec.links import encode
from tests.browser.conftest import visits
from tests.browser.pages import FACTS, VIEWS, answer, click_through, filled_in, run, wait_status

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]

XSS = '<img src=x onerror="window.__pwned=1"> ${window.__pwned=2} </script><script>window.__pwned=3</script> {{7*7}}'


def fill(page, prompt: str, tokens: int = 12) -> None:
    """A short prompt, two lanes and few tokens, through the form."""
    page.locator("#prompt textarea").fill(prompt)
    if not page.locator("#max-new-tokens input").is_visible():
        page.get_by_role("button", name="Generation options").click()
    page.locator("#max-new-tokens input").fill(str(tokens))
    page.locator("#max-new-tokens input").blur()
    while page.locator("button.lane-row").count() > 2:
        rows = page.locator("button.lane-row").count()
        page.locator(f"#lane-row-{rows - 1}").click()
        page.locator("#remove-lane").click()
        page.wait_for_function(f"document.querySelectorAll('button.lane-row').length == {rows - 1}")


@pytest.fixture(scope="module")
def finished_link(server, browser) -> str:
    """One run through the page; what it showed on its way is checked here once."""
    with visits(browser) as visit:
        return link_of_a_run(visit(server))


def link_of_a_run(page) -> str:
    page.wait_for_selector("#lane-row-4")
    fill(page, FACTS * 3 + "Why did people trust the mill?", 24)
    page.evaluate(
        """() => {
        window.__seen = [];
        const look = () => {
            const words = document.querySelector('#status .status b')?.innerText ?? '';
            const lengths = [...document.querySelectorAll('.answer .prose.tokens')].map(e => e.innerText.length);
            const now = JSON.stringify([words, lengths]);
            if (now !== window.__last) { window.__last = now; window.__seen.push([words, lengths]); }
        };
        new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
        }"""
    )
    run(page)
    wait_status(page, "Done")
    seen = page.evaluate("window.__seen")
    decoding = [at for at, (words, _) in enumerate(seen) if words.startswith("Decoding")]
    partial = [seen[at] for at in decoding if seen[at][1] and seen[at][1][0] > 0]
    steps = [int(words.split()[1]) for words, _ in partial]
    assert len({tuple(lengths) for _, lengths in partial}) >= 3 and steps[0] < 18, seen
    # which of the stages before the first step is seen depends on how fast they are
    before = [words for words, _ in seen[: decoding[0]]]
    assert any(words.startswith(("Starting", "Loading", "Prefill", "Encoding")) for words in before), seen
    page.wait_for_selector("#share textarea", state="attached")
    link = page.locator("#share textarea").input_value()
    assert "run=" in link and page.url.endswith(link.split("?")[1])
    page.wait_for_selector("#runs a")
    page.wait_for_selector(VIEWS["Verdicts"])
    click_through(page, 1280)
    return link


def test_a_run_streams_and_its_link_opens_in_another_process(finished_link, page_beside, open_page):
    page = open_page(page_beside + "/?" + finished_link.split("?")[1])
    page.wait_for_selector("#card-2 .badge")
    assert page.locator(".answer h3").first.inner_text() == "Full precision"
    assert "no verdict" in page.locator("#card-1 .badge").inner_text()  # 23 scored positions are too few
    assert len(answer(page, 0)) > 20 and "Stored run" in page.locator("#status").inner_text()
    assert FACTS[:40] in page.locator("#prompt textarea").input_value()
    assert page.locator("button.lane-row").count() == 2
    page.wait_for_selector("#verdicts .verdict")
    assert page.locator("#score-table").inner_text().index("Noise floor") >= 0
    page.get_by_text("Same tokens", exact=True).click()
    page.wait_for_function("document.querySelector('#view-text input[value=\"Same tokens\"]').checked")
    assert answer(page, 1).split() == answer(page, 0).split()
    assert "reference:" in page.locator("#card-1 .tokens i[title]").nth(1).get_attribute("title")


@pytest.mark.long("page", sample=1)
@pytest.mark.parametrize("theme, ground", [("light", "rgb(255, 255, 255)"), ("dark", "rgb(23, 28, 39)")])
def test_the_page_fits_a_desk_and_a_phone(finished_link, server, open_page, theme, ground):
    page = open_page(f"{server}/?{finished_link.split('?')[1]}&__theme={theme}")
    page.wait_for_selector("#verdicts .verdict")
    assert page.evaluate("getComputedStyle(document.querySelector('#scorecard')).backgroundColor") == ground
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"innerWidth == {width}")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    tops = page.evaluate("['right', 'left'].map(id => document.getElementById(id).getBoundingClientRect().top)")
    assert tops[0] < tops[1], "on a phone what a link shows comes before the form"
    keeps_the_reference_in_sight_while_lanes_are_swiped(page)


def keeps_the_reference_in_sight_while_lanes_are_swiped(page) -> None:
    reference = page.locator("#card-0").bounding_box()
    page.locator(".cards").evaluate("cards => cards.scrollTo({left: cards.scrollWidth, behavior: 'instant'})")
    page.wait_for_function("document.querySelector('#card-2').getBoundingClientRect().right <= innerWidth")
    kept, last = page.locator("#card-0").bounding_box(), page.locator("#card-2").bounding_box()
    assert kept["x"] == reference["x"] and last["x"] >= kept["x"] + kept["width"]


def said(page, words: str) -> list[str]:
    """Where on the page something is said."""
    return page.evaluate(
        "words => ['estimate', 'notice', 'lane-error', 'lane-rows', 'status'].filter(id => "
        "document.getElementById(id).checkVisibility() && document.getElementById(id).innerText.includes(words))",
        words,
    )


@pytest.mark.long("page", sample=0)
def test_lanes_can_be_added_up_to_sixty_four(server, open_page):
    lanes = [{"method": "per_token", "label": f"lane {number}"} for number in range(62)]
    page = open_page(f"{server}/?c={encode(parse_spec({'prompt': FACTS, 'lanes': lanes}))}")
    for rows in (63, 64):
        page.locator("#add-lane").click()
        page.wait_for_function(f"document.querySelectorAll('button.lane-row').length == {rows}")
    page.wait_for_function("document.querySelector('#add-lane').disabled")
    assert "64 of 64" in page.locator("#add-lane").inner_text()


@pytest.fixture(scope="module")
def astray(server, browser) -> Iterator:
    """A page that a link of nonsense led to."""
    with visits(browser) as visit:
        yield visit(f"{server}/?run=%00%ff%fe{'9' * 3000}")


def test_a_link_that_names_nothing_is_a_clear_card(astray):
    """More of them without a browser."""
    page = astray
    page.wait_for_selector("#status .notice.bad")
    words = page.locator("#status").inner_text()
    assert "This link" in words and "Traceback" not in words
    assert page.locator("#prompt textarea").input_value() and page.locator("#run").is_enabled()


def test_bad_input_is_answered_where_the_person_is(astray):
    page = astray
    page.locator("#prompt textarea").fill("")
    run(page)
    page.wait_for_selector("#notice .notice")
    assert "prompt is empty" in page.locator("#notice").inner_text()
    page.locator("#prompt textarea").fill("word " * 9000)
    page.wait_for_function("document.querySelector('#launch').innerText.includes('more than the 8192')", timeout=60_000)
    page.locator("#prompt textarea").fill(FACTS)
    page.wait_for_function("document.querySelector('#estimate').innerText.includes('prompt tokens')")
    page.locator("#lane-row-0").click()
    page.locator("#kivi-group_size input").fill("5000")
    page.wait_for_function("document.querySelector('#lane-error').innerText.includes('1 to 1024')")
    page.locator("#model input").fill("../../etc/passwd")
    page.locator("#model input").press("Enter")
    page.wait_for_selector("#estimate .refused", state="attached")  # said at the lane, and only there
    assert said(page, "group_size = 5000") == ["lane-error"]
    run(page)
    page.wait_for_function("document.querySelector('#notice').innerText.includes('group_size')")
    assert said(page, "group_size = 5000") == ["notice"]
    assert page.locator("#prompt textarea").input_value() == FACTS
    assert page.locator("#kivi-group_size input").input_value() == "5000"


@pytest.mark.long("journey", sample=0)
def test_two_visitors_each_see_their_own_and_markup_stays_text(server, open_page):
    one = filled_in(open_page, server, f"{FACTS}Repeat this colour: {XSS}", 6)
    two = filled_in(open_page, server, f"{FACTS}Name one animal.", 6)
    one.locator("#lane-row-0").click()
    one.locator("#lane-label :is(input, textarea)").fill("<img src=x onerror=window.__pwned=4>${1}")
    one.locator("#lane-label :is(input, textarea)").blur()
    one.wait_for_function("document.querySelector('#lane-row-0').innerText.includes('onerror')")
    run(one)
    run(two)
    links = []
    for page, other in ((one, "animal"), (two, "colour")):
        wait_status(page, "Done")
        page.wait_for_selector(VIEWS["Verdicts"])
        page.wait_for_selector("#share textarea", state="attached")
        links.append(page.locator("#share textarea").input_value())
        assert len(answer(page, 0)) > 3 and page.locator("#runs a").count() == 1
        assert other not in page.locator("#runs").inner_text()
    assert links[0] != links[1]
    assert "onerror" in one.locator("#card-1 h3").inner_text()
    assert one.evaluate("window.__pwned") is None and one.locator(".answer img, #score-table img").count() == 0


WRITTEN = "document.querySelector('#card-0 .prose.tokens:not(:has(.doing))')?.innerText ?? ''"


def prompts_kept(store_folder) -> list[str]:
    return [summary.prompt for summary in open_store(store_folder).list(500)]


def test_cancel_keeps_what_arrived_and_frees_the_engine(server, store_folder, open_page):
    page = filled_in(open_page, server, "Write a long story. " + FACTS * 2, 200)
    before = page.evaluate(WRITTEN)  # of the run that the page began with
    run(page)
    page.wait_for_function(f"before => ({WRITTEN}) !== before && ({WRITTEN}).length > 10", arg=before)
    page.locator("#cancel").click()
    wait_status(page, "Cancelled")
    assert len(answer(page, 0)) > 10 and page.locator("#run").is_enabled()
    page.get_by_role("button", name="Generation options").click()
    page.locator("#max-new-tokens input").fill("4")
    page.locator("#prompt textarea").fill("Write a short story.")
    run(page)
    wait_status(page, "Done")
    kept = prompts_kept(store_folder)  # runs follow one another: had it gone on, it would be there before the next
    assert "Write a short story." in kept and not any(prompt.startswith("Write a long story.") for prompt in kept)


@pytest.mark.long("page", sample=0)
def test_closing_the_tab_frees_the_engine(server, store_folder, open_page):
    gone = filled_in(open_page, server, "Write another long story. " + FACTS * 2, 400)
    before = gone.evaluate(WRITTEN)  # of the run that the page began with
    run(gone)
    gone.wait_for_function(f"before => ({WRITTEN}) !== before && ({WRITTEN}).length > 10", arg=before)
    gone.close()
    page = filled_in(open_page, server, "Name a tree. " + FACTS, 4)
    run(page)
    wait_status(page, "Done")
    kept = prompts_kept(store_folder)
    assert any(prompt.startswith("Name a tree.") for prompt in kept)
    assert not any(prompt.startswith("Write another long story.") for prompt in kept)
