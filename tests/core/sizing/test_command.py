"""``inspect`` of what cannot be run: a configuration alone, and kinds of models that are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvq_core.cli.main import main
from kvq_core.models import LoadedModel
from tests.core.sizing.test_fit import GEMMA_3_270M, gpt_oss

ASKED = ("--memory", "24GB", "--context", "8192", "--batch", "32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "gpt-oss-20b"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(gpt_oss()))
    return place


@pytest.mark.slow
def test_a_configuration_is_answered_without_a_network(folder: Path) -> None:
    """Weights are counted from what transformers builds, and no socket is opened."""
    code = (
        "import socket, sys\nsocket.socket.connect = lambda *_: sys.exit('a socket')\n"
        "from kvq_core.cli.main import main\n"
        f"sys.exit(main(['inspect', {str(folder)!r}, *{ASKED!r}, '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["fits"]["weights"]["how"] == "about 20.9B weights in bfloat16, experts in mxfp4"
    plain = told["fits"]["formats"][0]
    assert plain["name"] == "fp16" and round(plain["tensors"] / 2**30, 2) == 6.09
    assert {row["engine"]: row["reserved"] for row in plain["engines"]}["vLLM"] == 32 * (512 + 265) * 12 * 16 * 2048
    assert "not known" in told["unknown"]


def test_it_is_told_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), *ASKED]) == 0
    said = capsys.readouterr().out
    assert "32 x 8,192 tokens, in 24.0 GB" in said and "12 sliding (128 tokens)" in said
    assert "vLLM's sliding layers" in said and "2,048 new ones at once" in said
    assert any(line.split()[:7] == ["fp16", "vLLM", "auto", "6.54", "GB", "9.78", "GB"] for line in said.splitlines())


def test_a_model_that_a_run_refuses_is_sized_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    (tmp_path / "config.json").write_text(json.dumps({**GEMMA_3_270M, "architectures": ["Gemma3ForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unknown"] and told["fits"]["weights"] == {"nbytes": 1000, "how": "of its files"}


@pytest.mark.parametrize(
    "given", [("--memory", "24000"), ("--context", "0"), ("--batch", "-3"), ("--batched-tokens", "0")]
)
def test_what_cannot_be_asked_is_one_line(
    folder: Path, given: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(folder), *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "give" in said


def test_a_model_that_is_run_says_both(smollm: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", smollm.id, "--no-remedies", "--json", "--context", "100"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["facts"]["token_bytes"] * 100 == told["fits"]["formats"][0]["tensors"]
    assert told["fits"]["architecture"] == "llama" and told["fits"]["own_context"] == told["facts"]["context"]
