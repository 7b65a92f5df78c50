"""llama.cpp's own servers verified over HTTP, of a tiny model with random weights."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvq_core.cli.main import main
from kvq_core.servers.engine_runs import measure, read_prompts
from kvq_core.servers.llama_cpp import LlamaCpp, Types
from tests.support.gguf_files import source, write
from tests.support.gguf_keys import TOKENS as VOCABULARY

CONTEXT, TOKENS, TOP = 512, 12, 20
F32, F16, Q4 = Types("f32", "f32"), Types("f16", "f16"), Types("q4_0", "q4_0")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVQ_STORE", f"file://{tmp_path}/store")
    lines = [json.dumps({"prompt": f"{text} the tide and the mill. " * 2}) for text in ("Of", "On", "In", "By", "To")]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    model = source(
        "llama", vocab_size=len(VOCABULARY), head_dim=64, hidden_size=128, num_attention_heads=2, num_key_value_heads=1
    )
    return write(tmp_path / "m.gguf", model)


def verified(file: Path, types: Types, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict]:
    with LlamaCpp(file, F32, CONTEXT, threads=1) as own, LlamaCpp(file, types, CONTEXT, threads=1) as other:
        at, against = other.asked.http.address, own.asked.http.address
        given = ["--against", against, "--prompts", str(file.parent / "p.jsonl"), "--tokens", str(TOKENS)]
        code = main(["verify", at, *given, "--top", str(TOP), "--json", *more])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_server_is_as_far_off_as_the_engine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = verified(file, Q4, capsys)
    engine = list(measure(file, [Q4], read_prompts(file.parent / "p.jsonl"), TOKENS, TOP, threads=1))[-1]
    assert told["n_scored"] == len(engine.kld) and told["kld"]["mean"] == pytest.approx(np.mean(engine.kld), abs=1e-6)
    assert told["kld"]["mean"] > 3 * told["floor"] and told["reused"] > 0.9 and told["seconds"]["servers"] > 0
    assert not [note for note in told["notes"] if "untried" in note]


@pytest.mark.slow
def test_a_server_that_ignores_its_flag_is_told_from_one_that_does_not(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = verified(file, F16, capsys, "--format", "q4_0", "--model", str(file))
    assert (told["verdict"], code) == ("no-op", 1), told
    code, told = verified(file, Q4, capsys, "--format", "q4_0", "--model", str(file))
    assert (told["verdict"], code) == ("as expected", 0), told
