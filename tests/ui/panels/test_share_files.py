"""What a run is shared as beside its address: card, report, command, files."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from kvq_core.analysis.two_runs import versus
from kvq_core.pipeline.compare import run
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from tests.support.pages import EVIL, harmless
from tests.support.ui_record_factory import make_run
from ui.export.card import card, card_text
from ui.export.page import page
from ui.export.reproduce import FILE, LONGEST, command, comparison_json
from ui.html.copying import copy_box
from ui.panels.versus import versus_html

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def evil():
    record, arrays = make_run(2)
    record.spec["prompt"] = EVIL
    record.environment.model_title = EVIL
    record.reference.tokens[0] = EVIL
    for lane in record.lanes:
        lane.label += EVIL
        lane.tokens[0], lane.text = EVIL, EVIL
        lane.notes.append(EVIL)
    return record, arrays


@pytest.mark.slow
def test_the_page_is_one_file_that_fetches_nothing_and_runs_its_own_script_alone(evil):
    record, arrays = evil
    html = page(record, arrays, "", f"https://x.example/?run={record.id}")
    body, _, script = html.partition("</style>")[2].rpartition("<script>")
    seal = base64.b64encode(hashlib.sha256(script.partition("</script>")[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{seal}'" in html and html.isascii() and EVIL not in script
    data = r'<script type="application/json" class="marks">[^<]*</script>|<div id="[a-z]+-data" hidden>[^<]*</div>'
    assert len(re.findall(data, body)) >= 5  # of figures, of the answer's tokens, of what they read
    seen = harmless(re.sub(data, "", body))
    assert EVIL in seen.text and seen.tags.count("svg") >= 3
    fetched = [value for name, value in seen.attributes if name in ("src", "href", "xlink:href", "srcset")]
    assert all(value.startswith(("data:image/png", "https://x.example/?run=")) for value in fetched)
    assert "url(" not in body.replace("url(#scale-", "") and "@import" not in html
    assert "prefers-color-scheme: dark" in script and len(html) < 600_000
    for lane in record.lanes:
        assert lane.label in seen.text


@pytest.mark.slow
def test_the_page_draws_what_the_run_captured_and_nothing_else(sample_run):
    record, arrays = sample_run()
    made = page(record, arrays)
    assert "Answers" in made and "Keys as each lane reads them back" not in made


@pytest.mark.slow
def test_a_failed_lane_is_told_in_page_and_card(evil):
    record = evil[0].model_copy(deep=True)
    record.lanes[1].status, record.lanes[1].error = "failed", "No codebooks."
    record.lanes[1].metrics = record.lanes[1].memory = None
    assert "No codebooks." in page(record, evil[1], "", "https://x.example/")
    assert "failed" in card(record, evil[1], "https://x.example/")
    assert ": failed" in card_text(record, evil[1], "https://x.example/")


def test_the_card_is_valid_svg_with_the_scorecards_figures(evil):
    record, arrays = evil
    drawn = ElementTree.fromstring(card(record, arrays, "https://x.example/?run=1"))
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert not [e for e in drawn.iter() if e.tag.endswith("script")]
    memory = record.lanes[0].memory
    assert f"{100 * memory.kv_ratio:.0f} %" in texts and "x.example/?run=1" in texts
    assert any("noise floor" in text for text in texts) and any("nats" in text for text in texts)
    said = card_text(record, arrays, "https://x.example/?run=1")
    assert said.splitlines()[-1] == "https://x.example/?run=1" and f"size {100 * memory.kv_ratio:.0f} %" in said


def test_copy_boxes_and_the_page_beside_another_run_are_escaped(evil):
    record, arrays = evil
    assert "</textarea></script>" not in copy_box(EVIL, EVIL, follow=EVIL)
    harmless(copy_box(EVIL, EVIL, follow=EVIL))
    other = record.model_copy(update={"id": "f" * 16, "spec": {**record.spec, "system": EVIL}})
    address = "https://x.example/?run=1&vs=2"
    seen = harmless(versus_html(record, other, versus(record, other), (arrays, arrays), address, "run=1&vs=2"))
    assert EVIL in seen.text


@pytest.mark.long("programs", sample=0)
def test_the_command_computes_the_same_run_again(smollm, tmp_path):
    """Through a real shell, with a prompt that a shell could take apart."""
    spec = parse_spec(
        {
            "prompt": 'It\'s $HOME, `id` and "quotes" \\ \u00e9\nEOF\n' + "The mill worked with the tide. " * 4,
            "max_new_tokens": 2,
            "lanes": [{"label": "K2", "method": "per_token", "knobs": {"bits": 2}}],
            "capture": {"detail": "off"},
        }
    )
    record = run(spec, open_store(str(tmp_path / "store")))
    lines = command(record).replace("python ", f"{sys.executable} ", 1)
    assert f"cat > {FILE}" in lines
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "KVQ_STORE": str(tmp_path / "store")}
    done = subprocess.run(["sh", "-c", lines], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"run {record.id} " in done.stdout
    assert (tmp_path / FILE).read_text().strip() == comparison_json(record)


def test_a_long_prompt_leaves_the_command_with_a_file(sample_run):
    record, _ = sample_run(prompt="word " * LONGEST)
    assert command(record) == f"python -m kvq_core compare --spec {FILE}"
    assert json.loads(comparison_json(record))["prompt"] == record.spec["prompt"]
