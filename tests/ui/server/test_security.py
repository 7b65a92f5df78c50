"""What strangers hand in stays text: in HTML, in tables, in the log; models are weights and nothing else; no secret
leaves the environment."""

import csv
import io
import json
import os
import pickle
from html.parser import HTMLParser
from pathlib import Path

import gradio as gr
import plotly.graph_objects as go
import pytest
from safetensors.torch import save_file

import kvq_core
from kvq_core.errors import ModelError
from kvq_core.models import load
from kvq_core.record.events import Finished
from kvq_core.record.store import open_store
from tests.support.tiny_models import tiny
from tests.support.ui_record_factory import make_run
from ui.html.escape import cell_safe, safe
from ui.html.tables import scorecard, to_csv
from ui.panels.header import chip, markup
from ui.panels.history import history_html, remember
from ui.panels.launch import finished_line
from ui.panels.scorecard import _block
from ui.selection import selection_html, start
from ui.views.export import view_csv
from ui.views.tabs import TABS
from ui.views.view import Drawing

HOSTILE = "<img src=x onerror=pwned()><svg/onload=pwned()>${pwned()}{{pwned}}</script></div>\u202e\x1b[31m\x00"
FORMULAS = ["=HYPERLINK(1)", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1"]


class Tags(HTMLParser):
    """Every element with its attributes; the text."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def assert_inert(html: str) -> None:
    """No element, attribute or address that a text brought along."""
    for tag, attributes in Tags(html).found:
        assert tag not in ("img", "script", "iframe", "object", "embed", "form", "base", "meta", "link"), html[:200]
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert not (attributes.get("href") or "").strip().lower().startswith(("javascript:", "data:"))
    assert "\x1b" not in html and "\x00" not in html


def hostile_run():
    """A record with somebody's markup in every text, and its arrays."""
    record, arrays = make_run(labels=(HOSTILE[:60], "=1+1"), text=HOSTILE)
    bad = {"label": HOSTILE, "summary": HOSTILE, "title": HOSTILE, "notes": [HOSTILE]}
    lanes = [lane.model_copy(update=bad) for lane in record.lanes[:1]] + record.lanes[1:]
    environment = record.environment.model_copy(update={"model": HOSTILE, "model_title": HOSTILE, "device": HOSTILE})
    spec = {**record.spec, "prompt": HOSTILE, "notes": HOSTILE, "system": HOSTILE}
    vocabulary = dict.fromkeys(record.vocabulary, HOSTILE)
    changes = {"lanes": lanes, "environment": environment, "spec": spec, "vocabulary": vocabulary}
    return record.model_copy(update=changes), arrays


@pytest.fixture(scope="module")
def hostile():
    return hostile_run()


def test_the_test_would_notice():
    for bad in ("<img src=x>", "<b onclick=x>", '<a href=" JavaScript:x">', "\x1b"):
        with pytest.raises(AssertionError):
            assert_inert(bad)
    assert_inert(safe(HOSTILE))
    assert "pwned" in Tags(safe(HOSTILE)).text


@pytest.mark.slow
@pytest.mark.parametrize(("title", "create"), TABS)
def test_every_view_shows_text_as_text(hostile, title, create):
    record, arrays = hostile
    with gr.Blocks():
        view = create()
        picked = [picker.value for picker in view.pickers]
    if view.fit:
        for at, update in enumerate(view.fit(record)):
            picked[at] = update.get("value", picked[at]) if isinstance(update, dict) else picked[at]
    drawn = view.draw(record, arrays, start(record, arrays), picked)
    assert drawn and all(isinstance(html, str) for html in drawn)
    for html in drawn:
        assert_inert(html)


def test_everything_around_the_views_shows_text_as_text(hostile):
    record, arrays = hostile
    for html in (
        markup(chip(record)),
        _block(record),
        history_html(remember([], record)),
        selection_html(record, arrays, start(record, arrays)),
        finished_line(Finished(record, {}, unkept=HOSTILE)),
    ):
        assert_inert(html)


@pytest.mark.slow
@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text):
    record, arrays = make_run(labels=("ok", text.strip() or "x"))
    lanes = [record.lanes[0], record.lanes[1].model_copy(update={"label": text})]
    rows = list(csv.reader(io.StringIO(to_csv(scorecard(record.model_copy(update={"lanes": lanes}), arrays)))))
    assert rows[-1][0] == "'" + text
    figure = points_of(text)
    cells = list(csv.reader(io.StringIO(view_csv(record, start(record, arrays), "x", figure))))[1]
    assert cells[1] == "'" + text and cells[2] == "'" + text and cells[3] == "-2.5"
    assert cell_safe("a=1") == "a=1" and cell_safe(-1) == -1 and cell_safe("−1") == "−1"


def points_of(text: str) -> Drawing:
    return Drawing("", {"points": go.Figure(go.Scatter(x=[text], y=[-2.5], name=text))})


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model directory: a configuration, no weights."""
    path = tmp_path / "model"
    path.mkdir()
    tiny("llama").model.config.save_pretrained(path)
    return path


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.bin", "pytorch_model.bin.index.json", "model.pt"])
def test_pickled_weights_are_not_opened(folder, tmp_path, name):
    mark = tmp_path / "pwned"
    if name.endswith(".json"):
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "evil.bin"}}
        (folder / name).write_text(json.dumps(index))
        (folder / "evil.bin").write_bytes(pickle.dumps(Payload(mark)))
    else:
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(ModelError, match="could not be loaded") as caught:
        load(str(folder))
    assert not mark.exists() and "\n" not in str(caught.value)


def test_the_payload_would_work(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "pwned")))
    assert (tmp_path / "pwned").exists()


@pytest.mark.parametrize("kind", ["llama", "made-up"])
def test_code_that_comes_with_a_model_is_not_run(folder, tmp_path, kind):
    """auto_map names classes in the model's own files; a known type is loaded without them, an unknown one refused."""
    mark = tmp_path / "pwned"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        "class EvilConfig(LlamaConfig): model_type = 'made-up'\nclass Evil(LlamaForCausalLM): pass\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": kind, "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"})
    )
    save_file({k: v.clone() for k, v in tiny("llama").model.state_dict().items()}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="could not be loaded"):  # at the latest for want of a tokenizer
        load(str(folder))
    assert not mark.exists()


def test_no_secret_is_in_a_run_or_its_log(smollm, tmp_path, monkeypatch, capfd):
    secret = "hf_tested0secret0tested0secret"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, secret)
    lanes = [{"method": "per_token"}]
    record = kvq_core.run(
        kvq_core.parse_spec({"prompt": "Say hi.", "max_new_tokens": 3, "lanes": lanes}), open_store(str(tmp_path))
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3 and record.environment.versions
    home = str(Path.home()).encode()
    for path in files:
        data = path.read_bytes()
        assert secret.encode() not in data
        assert home == b"/" or home not in data, "not even where things lie on this machine"
    assert secret not in "".join(capfd.readouterr())
