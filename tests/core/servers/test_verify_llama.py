"""llama.cpp's own servers verified over HTTP, of a tiny model with random weights."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvq_core.cli.main import main
from kvq_core.servers.dialects import LlamaServer
from kvq_core.servers.engine_runs import measure, read_prompts
from kvq_core.servers.http import Http
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


@pytest.mark.slow
def test_a_model_that_is_run_here_is_a_baseline(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of float32 weights, so that the engine rounds no activations: what is left is the cache."""
    found = []
    for types in (F32, Q4):
        with LlamaCpp(file, types, CONTEXT, threads=1) as server:
            given = ["--model", str(file), "--prompts", str(file.parent / "p.jsonl"), "--tokens", str(TOKENS), "--json"]
            main(["verify", server.asked.http.address, *given])
        found.append(json.loads(capsys.readouterr().out))
    full, four = found
    assert full["baseline"]["engine"] == "KVQ Explorer" and full["n_scored"] == four["n_scored"] > 0
    assert full["kld"]["mean"] < 1e-4 < four["kld"]["mean"] and full["floor"] < four["kld"]["mean"]
    assert full["flips"] == full["near_tie_flips"], "the same words from both"


@pytest.mark.slow
def test_a_server_that_reads_all_again_is_measured_and_said_so(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp reads a text anew through its cache, so that a format is found there as well."""
    complete = LlamaServer.complete

    def anew(self: LlamaServer, tokens: list, count: int, **more: Any) -> dict:
        return complete(self, tokens, count, **{**more, "cache_prompt": False})

    monkeypatch.setattr(LlamaServer, "complete", anew)
    _, told = verified(file, Q4, capsys)
    assert told["reused"] == 0 and any("Prefixes were not reused: 0%" in note for note in told["notes"])
    assert told["kld"]["mean"] > 3 * told["floor"]


@pytest.mark.slow
def test_another_client_that_takes_the_slot_is_seen(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was stored is read again."""
    with LlamaCpp(file, F16, CONTEXT, threads=1) as own, LlamaCpp(file, Q4, CONTEXT, threads=1) as other:
        stop = threading.Event()

        def bother() -> None:
            with Http(other.asked.http.address) as http:
                while not stop.is_set():
                    http.post("/completion", {"prompt": "Of other things", "n_predict": 2, "id_slot": 0})

        client = threading.Thread(target=bother)
        client.start()
        try:
            given = ["--against", own.asked.http.address, "--prompts", str(file.parent / "p.jsonl")]
            main(["verify", other.asked.http.address, *given, "--tokens", str(TOKENS), "--json"])
        finally:
            stop.set()
            client.join()
    told = json.loads(capsys.readouterr().out)
    assert told["reused"] < 0.9


@pytest.mark.slow
def test_a_server_that_was_killed_is_gone_on_with(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process of its own, ended in mid-run and started again at its port."""
    ports = [free_port(), free_port()]
    lines = file.parent / "home" / "verifying"
    given = ["--against", f"http://127.0.0.1:{ports[1]}", "--prompts", str(file.parent / "p.jsonl"), "--tokens", "24"]
    with served(file, "f32", ports[1]), served(file, "q4_0", ports[0]) as server:
        killer = threading.Thread(target=kill_after_a_prompt, args=[server, lines])
        killer.start()
        code = main(["verify", f"http://127.0.0.1:{ports[0]}", *given, "--json"])
        killer.join()
        assert code == 3 and "cannot be reached" in capsys.readouterr().err
        before = [json.loads(line) for line in next(lines.iterdir()).read_text().splitlines()]
        assert 1 <= len(before) < 5
        with served(file, "q4_0", ports[0]):
            main(["verify", f"http://127.0.0.1:{ports[0]}", *given, "--json"])
    told = capsys.readouterr()
    assert f"{len(before)} of 5 prompts were asked before" in told.err
    after = json.loads(told.out)
    assert [each["kld"] for each in after["prompts"]][: len(before)] == pytest.approx(
        [np.mean(each["kld"]) for each in before]
    )
    assert len(after["prompts"]) == 5 and not list(lines.iterdir())


SERVE = """
import sys, time
from pathlib import Path
import xllamacpp
from kvq_core.servers import llama_cpp
params = xllamacpp.CommonParams
file, form, port = sys.argv[1:]
xllamacpp.CommonParams = lambda: (lambda made: (setattr(made, "port", int(port)), made)[1])(params())
with llama_cpp.LlamaCpp(Path(file), llama_cpp.Types.of(form), 512, threads=1):
    print("ready", flush=True)
    time.sleep(600)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served(file: Path, form: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """llama.cpp's server in a process of its own."""
    command = [sys.executable, "-c", SERVE, str(file), form, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == "ready"
        yield process
    finally:
        process.kill()
        process.wait()


def kill_after_a_prompt(server: subprocess.Popen[str], lines: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (lines.is_dir() and any(f.stat().st_size for f in lines.iterdir())):
        time.sleep(0.005)
    server.kill()
