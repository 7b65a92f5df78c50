"""What a process leaves behind: no file for a download, no trace on the terminal, however it ends."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvq_core.machine.files import LEFT_S
from kvq_core.record.beside import write_beside
from kvq_core.record.sharing import keep_store_private, key_of
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
from ui.service.housekeeping import NEW_S, PREFIX, PROMPTS, own_folder, remove_left
from ui.service.services import Services

ROOT = Path(__file__).parents[3]
OWNER = """
import sys
from ui.service.housekeeping import own_folder
(own_folder() / "record.json").write_text("private")
print("ready", flush=True)
sys.stdin.readline()
"""


def python(*arguments: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ".", **env},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # in the background: ignored
    )


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The place for temporary files, of this process too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def long_ago(folder: Path) -> Path:
    os.utime(folder, (time.time() - NEW_S - 1,) * 2)
    return folder


def test_what_a_killed_process_left_goes_and_a_living_ones_stays(temporary):
    other = python("-c", OWNER)
    assert other.stdout.readline() == "ready\n"
    (theirs,) = map(long_ago, temporary.iterdir())
    mine = long_ago(own_folder())
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700 and theirs.exists()
    other.kill()
    other.wait()
    assert own_folder().exists() and mine.exists() and not theirs.exists()


def test_a_folder_that_was_cleared_away_comes_back_private(temporary):
    services = Services(None, None, None)
    services.downloads.rmdir()
    path = Path(services.file("a.csv", b"1"))
    assert path.read_bytes() == b"1" and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.long("kill", sample=1)
@pytest.mark.slow
@pytest.mark.parametrize(("end", "statuses"), [(signal.SIGTERM, {143}), (signal.SIGINT, {0, 130})])
def test_a_server_that_is_ended_leaves_nothing(temporary, end, statuses):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = python("-u", "app.py", PORT=str(port), KVQ_MODELS="none/such")
    with server:
        try:
            assert any("Running on" in line for line in server.stdout)
            assert list(temporary.glob(f"{PREFIX}*"))
            server.send_signal(end)
            _, said = server.communicate(timeout=60)
        finally:
            server.kill()
    assert server.returncode in statuses and "Traceback" not in said
    assert not list(temporary.glob(f"{PREFIX}*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "program"),
    [
        ("torch", ["-m", "kvq_core", "methods"]),
        ("torch", ["kvq-explorer", "methods"]),
        ("gradio", ["app.py"]),
        ("gradio", ["-m", "kvq_explorer"]),
    ],
)
def test_ctrl_c_while_libraries_are_imported_prints_no_trace(tmp_path, library, program):
    """With a library that takes as long as it likes."""
    (tmp_path / f"{library}.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    (tmp_path / "kvq-explorer").write_text("from kvq_explorer.__main__ import main; main()")  # as pip writes it
    if program[0] == "kvq-explorer":
        program = [str(tmp_path / program[0]), *program[1:]]
    process = python("-u", *program, PYTHONPATH=f"{tmp_path}:{ROOT}")
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and len(said.splitlines()) <= 1 and "Traceback" not in said


def test_what_was_left_a_moment_before_a_start_goes_later(temporary):
    (left := temporary / f"{PREFIX}x").mkdir()
    (prompts := temporary / f"{PROMPTS}y").mkdir()
    mine = own_folder()
    assert left.exists() and prompts.exists()  # new: one is not locked yet, of the other a form may be read
    long_ago(left)
    os.utime(prompts, (time.time() - LEFT_S - 1,) * 2)
    remove_left()
    assert list(temporary.iterdir()) == [mine]


def test_what_a_public_instance_keeps_is_for_its_user_alone(tmp_path, monkeypatch):
    store = open_store(str(tmp_path / "store"))
    key = key_of(store, "0" * 16)
    monkeypatch.setattr("kvq_core.machine.files._shut", 0)
    before = os.umask(0o022)
    try:
        store.save(*make_sample(id="1" * 16))
        (tmp_path / "store" / "secret").chmod(0o644)  # as earlier versions made it
        keep_store_private(store)
        store.save(*make_sample(id="2" * 16))
        write_beside(store, "studies/x/shared", b"link")
    finally:
        os.umask(before)
    modes = {file.relative_to(tmp_path): stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*")}
    assert modes[Path("store")] == 0o700 and modes[Path("store/secret")] == 0o600
    new = [mode for file, mode in modes.items() if {"2" * 16, "studies"} & set(file.parts)]
    assert len(new) >= 6 and not any(mode & 0o077 for mode in new)
    assert key_of(store, "0" * 16) == key
