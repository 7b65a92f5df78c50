"""The command as a whole, on a tiny file: checked on other prompts, written where it helps, refused in one line."""

import json
from pathlib import Path

import pytest
import torch

from kvq_core.cli.main import main
from kvq_core.mend.check import Measured
from kvq_core.mend.edit import Edit
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.mend import MendRequest, why_not
from kvq_core.mend.passes import Scored
from kvq_core.mend.texts import shipped
from kvq_core.models.gguf.header import read_header
from tests.support.gguf_files import source, write
from tests.support.gguf_keys import TOKENS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A model whose keys have large constants in pairs that hardly turn; prompts beside it."""
    rope = {"rope_type": "default", "rope_theta": 1e8}
    model = source("qwen2", hidden_size=128, head_dim=32, rope_parameters=rope)
    with torch.no_grad():
        for layer in model.model.layers:
            bias = layer.self_attn.k_proj.bias.view(2, 2, 16)
            bias.zero_()
            bias[:, 0, 11:] = 30.0
    texts = [("".join(TOKENS[(seed * 7 + at * at) % 90 + 33] for at in range(160))) for seed in range(9)]
    for name, own in (("choose", texts[:3]), ("check", texts[3:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in own))
    return write(tmp_path / "m.gguf", model)


def command(file: Path, *more: str) -> list[str]:
    prompts = ["--prompts", str(file.parent / "choose.jsonl"), "--check-prompts", str(file.parent / "check.jsonl")]
    return ["mend", str(file), "--for", "q4_0", "--context", "256", "--allow", "0.01", *prompts, *more]


@pytest.mark.slow
def test_a_file_is_mended_as_the_json_says(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = file.parent / "out.gguf"
    assert main(command(file, "--out", str(out), "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] and told["out"] == str(out) and told["format"] == "q4_0/q4_0" and told["context"] == 256
    kld = told["kld"]
    assert kld["after_low"] <= kld["after"] <= kld["after_high"] < kld["before_low"] and told["prompts"] == 6
    assert (
        told["full_precision_kld"] < 0.01 and told["biases"] and told["biases"][0].keys() >= {"layer", "head", "pairs"}
    )
    assert read_header(out).mended == f"mended for q4_0/q4_0, 256 tokens, {told['changed_bytes']:,} bytes changed"
    assert main(command(out, "--out", str(file.parent / "again.gguf"))) == 2
    assert "is mended already" in capsys.readouterr().err
    assert main(command(file, "--out", str(out))) == 2
    assert "exists" in capsys.readouterr().err
    seen = command(file, "--out", str(file.parent / "other.gguf"))
    assert main([*seen, "--check-prompts", seen[seen.index("--prompts") + 1]]) == 2
    assert "Prompt 1 to check on is one that edits are chosen on" in capsys.readouterr().err


@pytest.mark.slow
def test_biases_alone_are_changed_in_place_and_back(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()
    assert main(command(file, "--in-place", "--only", "biases")) == 0
    said = capsys.readouterr().out
    assert "bytes changed" in said and "Scales folded: 0 layers" in said and file.read_bytes() != before
    assert main(["mend", "--undo", str(file)]) == 0
    assert file.read_bytes() == before


def request(**changes: object) -> MendRequest:
    return MendRequest(Path("m.gguf"), CacheFormat.of("q4_0"), 512, Path("out.gguf"), **changes)


def measured(before: list[float], after: list[float], full: float) -> Measured:
    found = Measured()
    for one, two in zip(before, after, strict=True):
        found.add(*(Scored(torch.full((4,), kld), torch.ones(4, dtype=torch.bool)) for kld in (one, two, full)))
    return found


def test_no_file_where_the_interval_of_the_gain_holds_0() -> None:
    edit = Edit.none(1, 1, 4)
    drops = edit.with_keep(0, torch.zeros(4))
    good, one = measured([0.4, 0.5, 0.3, 0.6, 0.5], [0.04, 0.05, 0.03, 0.06, 0.05], 1e-4), measured([0.4], [0.04], 1e-4)
    assert why_not(request(), drops, good, one) is None
    unsure = measured([0.4, 0.5, 0.3, 0.6, 0.5], [0.5, 0.4, 0.3, 0.7, 0.4], 1e-4)
    assert "holds 0" in str(why_not(request(), drops, unsure, one))
    assert "nothing is gained at 512 tokens" in str(why_not(request(), drops, good, measured([0.04], [0.4], 1e-4)))
    changed = measured([0.4], [0.04], 2e-3)
    assert "give a shorter --context" in str(why_not(request(), drops, good, changed))
    assert why_not(request(allow=0.01), drops, good, changed) is None
    assert good.kld["after_high"] < good.kld["before_low"]


@pytest.mark.parametrize("where", ["before", "after", "full", "long.before", "long.after", "long.full"])
def test_no_file_where_a_figure_is_no_number(where: str) -> None:
    edit = Edit.none(1, 1, 4).with_keep(0, torch.zeros(4))
    both = measured([0.4, 0.5, 0.3, 0.6, 0.5], [0.04, 0.05, 0.03, 0.06, 0.05], 1e-4), measured([0.4], [0.04], 1e-4)
    of = both[where.startswith("long.")]
    getattr(of, where.removeprefix("long."))[0] = Scored(torch.full((4,), torch.nan), torch.ones(4, dtype=torch.bool))
    assert why_not(request(), edit, *both) is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--for", "q4_0"], "Give MODEL and --for"),
        (["none.gguf", "--for", "q4_0", "--out", "x.gguf"], "is no .gguf file"),
        (["none.gguf", "--for", "q4_0"], "Give one of --out FILE and --in-place"),
        (["none.gguf", "--for", "kivi", "--out", "x"], "nothing to gain"),
        (["none.gguf", "--for", "q4_0", "--in-place", "--verify"], "give --out in place of"),
        (["none.gguf", "--for", "q4_0", "--context", "8", "--out", "x"], "too short"),
        (["none.gguf", "--for", "q4_0", "--allow", "0", "--out", "x"], "--allow 0"),
        (["--undo", "none.gguf"], "was not changed in place"),
    ],
)
def test_bad_input_is_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mend", *given]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_shipped_texts_are_apart() -> None:
    """None that edits are chosen on is one that they are checked on."""
    chosen, checked = shipped("calibrate"), shipped("check")
    assert len(chosen) >= 8 and len(checked) >= 12 and not set(chosen) & set(checked)
    assert min(map(len, chosen + checked)) > 1500
