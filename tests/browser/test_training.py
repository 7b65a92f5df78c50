"""Missing codebooks: offered, trained in view, cancelled, and used without a reload. Real model, smallest training."""

import pytest

from tests.browser.pages import FACTS, answer, choose_method, filled_in, run, wait_status

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def choose(page, name: str, option: str) -> None:
    page.locator(f"#{name} select").select_option(label=option)


def ask_for_codebooks(page) -> None:
    """One CommVQ lane with settings nothing was trained for."""
    page.locator("#lane-row-0").click()
    choose_method(page, "CommVQ")
    page.wait_for_selector("#commvq-levels select")
    choose(page, "commvq-levels", "4")
    page.locator("#commvq-stages input").fill("1")
    page.locator("#commvq-stages input").blur()
    # drawn again with every setting that changes
    page.wait_for_function("document.querySelector('#training')?.textContent.includes('--levels 4 --stages 1')")
    page.wait_for_selector("#training")


def progress(page, words: str) -> None:
    page.wait_for_function(
        "words => document.querySelector('#training-progress')?.innerText.includes(words)", arg=words, timeout=250_000
    )


@pytest.mark.long("page", sample=0)
def test_missing_codebooks_are_offered_trained_and_used(home, other_server, open_page):
    page = filled_in(open_page, other_server, FACTS * 4 + "Why did people trust the mill?", 8)
    assert not page.locator("#training").is_visible()
    ask_for_codebooks(page)
    words = page.locator("#training-offer").inner_text()
    assert "CommVQ reads learned codebooks" in words and "keys (4 levels, 1 stage)" in words
    assert not (home / "codebooks").exists()  # nothing trains unasked
    page.get_by_text("sooner done").click()
    page.wait_for_function("document.querySelector('#training-offer').innerText.includes('1,536 tokens')")

    page.locator("#train").click()
    progress(page, "Reading text: 512 of 1,536 tokens")
    assert page.locator("#train").is_disabled()
    page.locator("#cancel-training").click()
    progress(page, "Training cancelled")
    page.wait_for_function("!document.querySelector('#train').disabled")

    page.locator("#train").click()
    progress(page, "Codebooks trained")
    page.locator("#train").wait_for(state="hidden")
    assert len(list((home / "codebooks").glob("*.safetensors"))) == 1
    run(page)
    wait_status(page, "Done")
    assert answer(page, 1) and "There are no" not in page.locator("#card-1").inner_text()
