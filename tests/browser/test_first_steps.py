"""What a first visitor's buttons do with the form: a lane beside the run that is shown, tokens enough for every lane,
a model's file that is mended and becomes the model."""

import pytest
import torch

from kvq_core.pipeline.examples import packaged_store
from kvq_core.spec import parse_spec
from kvq_core.spec.links import encode
from tests.browser.pages import FACTS, unfold
from tests.support.gguf_files import source, write
from ui.panels.welcome import home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
RECORD, _ = packaged_store().load(home()["run"])
LINE = "#look-words summary"


@pytest.mark.long("journey", sample=0)
def test_a_lane_is_added_to_the_run_that_is_shown_and_not_to_a_form_that_differs(quick, open_page):
    page = open_page(f"{quick}/?run={RECORD.id}", reading=True)
    page.wait_for_selector("#legend .lane-switch")
    unfold(page)
    page.locator("#prompt textarea").fill("Something else.")
    page.locator("#prompt textarea").press("Tab")
    page.wait_for_selector("#differs [data-form-back]")
    page.locator(".lane-power").nth(0).click()  # the form has fewer lanes, too
    page.locator("#asked [data-form=fold]").click()
    page.locator("[data-lane-more]").click()
    page.wait_for_selector(f"#lane-row-{len(RECORD.lanes)}")
    assert page.locator(".lane-row").count() == len(RECORD.lanes) + 1
    assert page.locator("#prompt textarea").input_value() == RECORD.spec["prompt"]
    assert page.locator(".lane-power[aria-checked=false]").count() == 0, "the run's own lanes"


@pytest.mark.long("journey", sample=0)
def test_tokens_enough_for_every_lane_are_one_click(server, open_page):
    lanes = [{"method": "kivi"}, {"method": "kivi", "knobs": {"residual_length": 128}}]
    spec = parse_spec({"prompt": FACTS[:60], "max_new_tokens": 12, "lanes": lanes})
    page = open_page(f"{server}/?c={encode(spec)}")
    page.wait_for_selector("#lane-row-1", state="attached")
    unfold(page)
    more = page.locator("#estimate [data-new-tokens]")
    more.wait_for(timeout=90_000)
    assert "would quantize nothing" in page.locator("#estimate").inner_text()
    tokens = more.get_attribute("data-new-tokens")
    more.click()
    page.wait_for_selector("#estimate [data-new-tokens]", state="detached")
    assert page.locator("#max-new-tokens input[type=number]").input_value() == tokens and int(tokens) > 12
    assert "would quantize nothing" not in page.locator("#estimate").inner_text()


@pytest.mark.long("journey", sample=0)
def test_a_file_is_mended_from_the_look_and_becomes_the_model(start_server, tmp_path, open_page):
    """On a tiny model whose keys carry constants in slow RoPE pairs."""
    rope = {"rope_type": "default", "rope_theta": 1e8}
    model = source("qwen2", hidden_size=128, head_dim=32, rope_parameters=rope, max_position_embeddings=8192)
    with torch.no_grad():
        for layer in model.model.layers:
            bias = layer.self_attn.k_proj.bias.view(2, 2, 16)
            bias.zero_()
            bias[:, 0, 11:] = 30.0
    file = write(tmp_path / "m.gguf", model)
    page = open_page(start_server(KVQ_HOME=str(tmp_path / "home")))
    unfold(page)
    page.locator("#model input").fill(str(file))
    page.locator("#model input").press("Enter")
    page.locator("#model input").press("Tab")
    page.wait_for_function(f"document.querySelector('{LINE}')?.innerText.startsWith('Not looked at')", timeout=90_000)
    page.locator(LINE).first.click()
    page.locator("[data-look]").click()
    page.wait_for_function(f"document.querySelector('{LINE}').innerText.includes('at risk')", timeout=90_000)
    if not page.locator("#look-words details[open]").count():
        page.locator(LINE).first.click()
    page.locator("[data-mend]").click()
    page.locator("#mend-cancel").wait_for()
    page.locator("[data-mended]").wait_for(timeout=150_000)
    status = page.locator("#mend-status").inner_text()
    assert "before" in status and "in full precision" in status and "bytes changed" in status
    page.locator("[data-mended]").click()
    (mended,) = (tmp_path / "home" / "mended").glob("m-*-q4_0-4096.gguf")
    page.wait_for_function("file => document.querySelector('#model input').value === file", arg=str(mended))
    assert mended.is_file() and file.is_file()
