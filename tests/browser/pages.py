"""What tests do on the page: fill its form, run, wait, read an answer, and look at every view."""

from playwright.sync_api import TimeoutError

from kvq_core.spec import parse_spec
from kvq_core.spec.links import encode

FACTS = (
    "The mill stood on a causeway and worked with the tide, twice a day, in summer and in winter alike. "
    "The miller wrote the height of every tide into a notebook and promised flour months ahead. "
)
VIEWS = {
    "Verdicts": "#verdicts .verdict",
    "Text": "#plot-kld-strips",
    "Attention": "#reading",
    "Where": "#plot-score-map",
    "Rate–distortion": "#plot-rate-kld",
    "Bits": "#plot-bits",
    "Spectra": "#plot-head-spectra",
    "Query subspace": "#plot-error-split",
}
MOST_FIGURES = 9
# Whether the browser keeps words of the form.
KEEPS = "words => Object.values(localStorage).concat(Object.values(sessionStorage)).some(kept => kept.includes(words))"


def filled_in(open_page, server: str, prompt: str, tokens: int = 12):
    """The page with a short prompt, two lanes and few tokens in its form, as a comparison's link fills it."""
    lanes = [{"method": "kivi"}, {"method": "squat"}]
    page = open_page(f"{server}/?c={encode(parse_spec({'prompt': prompt, 'max_new_tokens': tokens, 'lanes': lanes}))}")
    page.wait_for_function("prompt => document.querySelector('#prompt textarea').value == prompt", arg=prompt)
    return page


def unfold(page) -> None:
    """The form, which is folded while one reads."""
    if page.locator("#asked [data-form=open]").is_visible():
        page.locator("#asked [data-form=open]").click()


def open_sharing(page) -> None:
    page.wait_for_selector("#share textarea", state="attached")
    page.locator("[data-share]").click()
    page.wait_for_selector("#share textarea")


def choose_method(page, title: str) -> None:
    """The method of the lane that is open, as one finds it by its title."""
    page.locator("#in-lane-method").click()
    page.locator(".methods [type=search]").fill(title)
    page.keyboard.press("Enter")


def run(page) -> None:
    page.locator("#run").click()


def wait_status(page, start: str, timeout: float = 90) -> str:
    try:
        page.wait_for_function(
            "start => document.querySelector('#status .status b')?.innerText.startsWith(start)",
            arg=start,
            timeout=timeout * 1000,
        )
    except TimeoutError as error:
        seen = {part: page.locator(part).all_inner_texts() for part in ("#status", "#notice", "#launch", "#away")}
        raise AssertionError(f"no status {start!r}: {seen}") from error
    return page.locator("#status .status").inner_text()


def answer(page, card: int) -> str:
    return page.locator(f"#card-{card} .prose.tokens").inner_text()


def open_view(page, name: str) -> None:
    page.locator("#views").get_by_role("tab", name=name, exact=True).click()
    place = page.locator(VIEWS[name]).first
    place.scroll_into_view_if_needed()  # figures are drawn when they come into sight
    if name not in ("Verdicts", "Attention"):
        place.locator(".main-svg").first.wait_for()


SHOWN_FIGURES = (
    "[...document.querySelectorAll('#where .js-plotly-plot')]"
    ".filter(p => p.checkVisibility({visibilityProperty: true}))"
)


CLIPPED = """[...document.querySelectorAll('#where .plot svg.main-svg')].flatMap(svg => {
    const edge = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('.xtitle, .ytitle, .annotation text')]
        .filter(text => text.checkVisibility({visibilityProperty: true}) && text.getBoundingClientRect().width)
        .filter(text => {
            const box = text.getBoundingClientRect();
            return box.left < edge.left - 1 || box.right > edge.right + 1;
        }).map(text => text.textContent);
})"""


def click_through(page, width: int) -> None:
    for name in VIEWS:
        open_view(page, name)
        assert page.locator("#where .words p:visible").first.inner_text().strip(), name
        page.wait_for_function(f"{SHOWN_FIGURES}.length <= {MOST_FIGURES}")  # those of the view before go
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, name
        clipped = page.evaluate(CLIPPED)
        assert clipped == [], (name, clipped)
    assert page.evaluate(f"{SHOWN_FIGURES}.every(p => p.getAttribute('aria-label'))")
