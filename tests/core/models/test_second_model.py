"""The second model: where its file may come from, and what it says once it is converted."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvq_core.cli import second_model as command
from kvq_core.errors import ModelError
from kvq_core.machine.progress import converting, downloading
from kvq_core.models import load, second
from kvq_core.models.gguf.fetching import FetchedFile
from kvq_core.models.gguf.folder import last
from kvq_core.models.gguf.published import TITLE
from kvq_core.models.identity import sha256_of
from kvq_core.pipeline.compare import run
from kvq_core.spec import parse_spec


@pytest.fixture
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and a stand-in of four bytes for the file."""
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    (tmp_path / "given.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(second, "SIZE", 4)
    monkeypatch.setattr(second, "SHA256", sha256_of(tmp_path / "given.gguf"))
    (tmp_path / "home" / "downloads").mkdir()
    return tmp_path / "home"


def test_the_named_file_comes_before_the_downloaded_one(home: Path, tmp_path, monkeypatch) -> None:
    assert second.local_file() is None and not second.is_converted()
    kept = home / "downloads" / second.NAME
    kept.write_bytes(b"GGUF")
    assert second.local_file() == kept
    monkeypatch.setenv("KVQ_SECOND_MODEL", str(tmp_path / "given.gguf"))
    assert second.local_file() == tmp_path / "given.gguf"
    monkeypatch.setenv("KVQ_SECOND_MODEL", str(tmp_path / "none.gguf"))
    with pytest.raises(ModelError, match=r"KVQ_SECOND_MODEL = .*none\.gguf is no file"):
        second.local_file()


@pytest.mark.parametrize(("content", "said"), [(b"GGU", "3 bytes, not 4"), (b"GGUX", "the sha256 [0-9a-f]{64}, not")])
def test_another_file_is_refused(home: Path, content: bytes, said: str) -> None:
    (home / "downloads" / second.NAME).write_bytes(content)
    with pytest.raises(ModelError, match=f"is not {second.NAME} of {second.REPO}: it has {said}") as caught:
        second.local_file()
    assert "\n" not in str(caught.value)


def test_it_is_fetched_into_the_downloads(home: Path, monkeypatch) -> None:
    def fetch(repo: str, name: str, folder: Path) -> FetchedFile:
        assert (repo, name, folder) == (second.REPO, second.NAME, home / "downloads")
        (folder / name).write_bytes(b"GGUF")
        yield downloading(4, 4)
        return folder / name

    monkeypatch.setattr(second, "fetched_to", fetch)
    assert last(second.download_second()) == home / "downloads" / second.NAME == second.local_file()


def test_where_it_cannot_be_had_one_line_says_what_to_do(home: Path, monkeypatch) -> None:
    def fetch(*_: object, **__: object) -> str:
        raise ConnectionError("no route\nto the host")

    monkeypatch.setattr(second, "fetched_to", fetch)
    with pytest.raises(ModelError, match="could not be had from the Hub: no route to the host") as caught:
        last(second.download_second())
    assert "KVQ_SECOND_MODEL=file" in str(caught.value) and "\n" not in str(caught.value)


def test_where_no_terminal_is_the_command_gives_the_id_alone(home: Path, monkeypatch, capsys) -> None:
    steps = [downloading(1, 2), downloading(2, 2), converting(4, 4)]
    monkeypatch.setattr(command, "prepare_second", lambda: iter(steps))
    monkeypatch.setattr("sys.stderr", io.StringIO())
    command.main()
    assert capsys.readouterr().out == f"{second.SECOND_MODEL}\n"


@pytest.mark.slow
def test_as_a_command_it_says_one_line(tmp_path) -> None:
    told = {"KVQ_HOME": str(tmp_path), "KVQ_SECOND_MODEL": str(tmp_path / "none.gguf")}
    asked = [sys.executable, "-m", "kvq_core.cli.second_model"]
    done = subprocess.run(asked, env=os.environ | told, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"KVQ_SECOND_MODEL = .*none\.gguf is no file.*\n", done.stderr), done.stderr


def test_the_second_model_is_what_its_file_says(second_model: str) -> None:
    loaded = load(second_model)
    assert loaded.id == second_model == f"gguf:{second.SHA256[:16]}" and loaded.weights_hash == second.SHA256[:16]
    assert loaded.title == TITLE
    assert loaded.quantization == "Q4_K_M: Q5_0 133, F32 121, Q8_0 13, Q6_K 12, Q4_K 12"
    assert (loaded.shape.layers, loaded.shape.query_heads, loaded.shape.kv_heads) == (24, 14, 2)
    assert loaded.shape.head_dim == 64 and set(loaded.rotations) == {"rope"}
    norms = [layer.self_attn.k_proj.bias.norm().item() for layer in loaded.model.base_model.layers]
    at_risk = sorted(range(len(norms)), key=lambda i: -norms[i])[:4]
    assert sorted(at_risk) == [0, 1, 2, 8] and norms[0] > 10 * torch.tensor(norms).median()


def test_the_second_model_answers_a_question_about_python(second_model: str) -> None:
    prompt = "Write a Python function that returns the mean of a list. Only code."
    lane = {"method": "per_token", "knobs": {"bits": 8}}
    asked = {"model": second_model, "prompt": prompt, "max_new_tokens": 12, "lanes": [lane]}
    record = run(parse_spec({**asked, "capture": {"detail": "off"}}))
    assert "def " in record.reference.text
    assert record.environment.weights_note == (
        "Weights are the file's (Q4_K_M), dequantized: lanes compare caches of this file."
    )
