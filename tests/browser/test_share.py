"""Sharing a run in a real browser: what the boxes hold, what the files are, and what links open."""

import csv
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from safetensors.torch import load_file

from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate
from kvq_core.record.fields import Record
from kvq_core.record.store import open_store
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL, parse_spec
from kvq_core.spec.links import decode, encode
from tests.browser.conftest import served_here, visits
from tests.browser.pages import open_sharing, open_view
from tests.browser.test_page import FACTS, filled_in, run
from tests.browser.test_training import ask_for_codebooks
from tests.support.ui_record_factory import make_run
from ui.service.services import Services

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"
NAMES = ("Run (HTML)", "Record (JSON)", "Arrays (safetensors)", "Scorecard (CSV)", "Comparison (JSON)")


@pytest.fixture(scope="module")
def runs(store_folder) -> dict[str, Record]:
    """Two stored runs of the same comparison but for its seed."""
    store, found = open_store(store_folder), {}
    spec = parse_spec({"prompt": "Why did people trust the mill?", "lanes": [{"method": "kivi"}, {"method": "squat"}]})
    for seed, id in enumerate((ONE, OTHER)):
        record, arrays = make_run(2)
        told = spec.model_copy(update={"seed": seed}).model_dump(mode="json")
        found[id] = record.model_copy(update={"id": id, "spec": told})
        store.save(found[id], arrays)
    return found


@pytest.fixture(scope="module")
def variables(tmp_path_factory) -> dict[str, str]:
    """The environment of a public instance with a store of its own and no trained codebooks."""
    home = tmp_path_factory.mktemp("public")
    (home / "models").symlink_to(settings().home / "models")
    return {"KVQ_HOME": str(home), "KVQ_STORE": str(home / "store"), "KVQ_MODELS": DEFAULT_MODEL}


@pytest.fixture(scope="module")
def served(variables) -> Iterator[str]:
    """Its address. It is served from this process: a further one would load the model once more."""
    with ExitStack() as serving:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            address = serving.enter_context(served_here(Services(open_store(), compare, estimate)))
        yield address


@pytest.fixture
def public(served, variables, monkeypatch) -> tuple[str, str]:
    """The address of the public instance and the path of its store."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return served, variables["KVQ_STORE"]


def opened(open_page, address: str, **options):
    page = open_page(address, **options)
    open_sharing(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#share-more button.label-wrap").click()
    page.wait_for_selector("#copies img")
    # the report last: its figures wait for those of the views, which a new server draws for the first time
    page.wait_for_function("!document.querySelector('#downloads button:disabled')", timeout=120_000)
    return page


def test_a_comparison_link_fills_the_form_and_waits(server, open_page):
    spec = parse_spec({"prompt": "Name three rivers.", "seed": 5, "lanes": [{"label": "Mine", "method": "squat"}]})
    page = open_page(f"{server}/?c={encode(spec)}")
    page.wait_for_function("document.querySelector('#prompt textarea').value == 'Name three rivers.'")
    assert page.locator("button.lane-row").count() == 1 and "Mine" in page.locator("#lane-row-0").inner_text()
    assert "nothing was computed" in page.locator("#status").inner_text()
    assert page.locator("#run").inner_text() == "Run" and not page.locator("#results").is_visible()


@pytest.mark.long("page", sample=0)
def test_two_runs_beside_each_other_by_link_and_by_choice(server, runs, open_page):
    page = open_page(f"{server}/?run={ONE}&vs={OTHER}")
    page.wait_for_selector("#versus-found table.versus")
    told = page.locator("#versus-found").inner_text()
    assert "seed" in told and "may be ranked" in told
    assert page.locator("#versus-found textarea").input_value() == f"{server}/?run={ONE}&vs={OTHER}"
    page = open_page(f"{server}/?run={OTHER}", width=390)
    page.wait_for_selector("#versus")
    page.locator("#versus button.label-wrap").click()
    page.locator("#versus-run input").fill(f"{server}/?run={ONE}")
    page.locator("#versus-run input").press("Enter")
    page.locator("#versus-go").click()
    page.wait_for_selector("#versus-found table.versus")
    page.wait_for_function(f"location.search == '?run={OTHER}&vs={ONE}'")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    page.locator("#versus-run input").fill("nothing of the kind")
    page.locator("#versus-run input").press("Enter")
    page.locator("#versus-go").click()
    page.wait_for_selector("#versus-found .notice.bad")
    assert page.locator("#share textarea").input_value()


@pytest.mark.long("page", sample=0)
def test_a_public_run_is_its_makers_until_it_is_shared(public, open_page):
    server, folder = public
    mine = filled_in(open_page, server, FACTS + "Why?", 2)
    run(mine)
    mine.wait_for_selector("#share textarea", state="attached", timeout=200_000)
    open_sharing(mine)
    assert mine.locator("#private").is_visible()
    link = mine.locator("#share textarea").input_value()
    mine.wait_for_selector("#runs a")
    mine = mine.context.new_page()  # the same browser opens it again
    mine.goto(link)
    open_sharing(mine)
    mine.wait_for_selector("#private >> visible=true")
    assert embed_offer(mine) == ("Embed code: share the run first", False), "a frame would say that there is none"
    stranger = open_page(link)
    stranger.wait_for_selector("#status .notice.bad")
    assert "has not shared it" in stranger.locator("#status").inner_text()
    mine.locator("#share-listed input").check()
    mine.locator("#share-run").click()
    mine.wait_for_selector("#private", state="hidden")
    assert embed_offer(mine) == ("Copy embed code", True)
    stranger = open_page(link)
    stranger.wait_for_selector("#share textarea", state="attached")
    assert f"run={link.split('run=')[1]}" in stranger.locator("#shared a").first.get_attribute("href")
    assert open_store(folder).shared(link.split("run=")[1]) == "listed"


def embed_offer(page) -> tuple[str, bool]:
    """What a figure's menu says of its embed code, and whether that can be pressed."""
    open_view(page, "Rate–distortion")
    page.locator("[data-figure-menu=rate-kld] summary").click()
    offer = page.locator("[data-figure-menu=rate-kld] [data-take=embed]")
    found = offer.inner_text(), offer.is_enabled()
    page.keyboard.press("Escape")
    return found


@pytest.mark.long("page", sample=0)
def test_a_public_instance_says_that_it_does_not_train(public, open_page):
    page = open_page(public[0], width=390)
    ask_for_codebooks(page)
    assert "does not train" in page.locator("#training").inner_text() and not page.locator("#train").is_visible()
    page.get_by_text("From a terminal").click()
    assert "codebooks train --model" in page.locator("#training code").inner_text()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390


@pytest.fixture(scope="module")
def sharing(server, runs, browser) -> Iterator:
    """A page with a run of which everything is to be had."""
    with visits(browser) as visit:
        yield opened(visit, f"{server}/?run={ONE}")


def test_boxes_hold_links_that_can_be_copied_and_the_card_is_a_picture(server, runs, sharing, tmp_path):
    page = sharing
    assert page.locator("#share textarea").input_value() == f"{server}/?run={ONE}"
    page.locator("#share button.copy").click()
    page.wait_for_function("document.querySelector('#share button.copy').innerText == 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == f"{server}/?run={ONE}"
    texts = [box.input_value() for box in page.locator("#copies textarea").all()]
    link, card, command = texts
    assert decode(parse_qs(urlsplit(link).query)["c"][0]).canonical() == parse_spec(runs[ONE].spec).canonical()
    assert f"{server}/?run={ONE}" in card and "KLD" in card and command.startswith("cat > comparison.json <<'EOF'")
    with page.expect_download() as waiting:
        page.locator("#copies button.png").click()
    waiting.value.save_as(tmp_path / "card.png")
    raw = (tmp_path / "card.png").read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(raw[16:20]) == 2400 and len(raw) > 20_000


def test_files_download_and_parse_and_the_report_opens_offline(runs, sharing, browser, tmp_path):
    page = sharing
    files = {}
    for name in NAMES:
        with page.expect_download() as waiting:
            page.locator("#downloads").get_by_role("button", name=name).click()
        files[name] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[name])
        assert files[name].name.startswith(ONE)
    assert Record.model_validate_json(files["Record (JSON)"].read_bytes()) == runs[ONE]
    assert "lane/0/kld" in load_file(files["Arrays (safetensors)"])
    rows = list(csv.DictReader(files["Scorecard (CSV)"].open()))
    assert [row["lane"] for row in rows] == ["Noise floor", *(lane.label for lane in runs[ONE].lanes)]
    assert parse_spec(json.loads(files["Comparison (JSON)"].read_bytes())).prompt == runs[ONE].spec["prompt"]
    for theme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(23, 28, 39)")):
        look_at_report(browser, files["Run (HTML)"], theme, ground)


def look_at_report(browser, file: Path, theme: str, ground: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=theme, offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    assert page.locator("figure svg").count() >= 3
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor") == ground
    assert complaints == []
    context.close()
