"""Files that are whole or absent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvq_core.machine import files
from kvq_core.machine.interrupt import not_for_children


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "a.json"
    files.write(path, b"old")
    with pytest.raises(RuntimeError), files.aside(path) as new:
        new.write_bytes(b"half")
        assert path.read_bytes() == b"old"
        raise RuntimeError("the writer stopped")
    assert path.read_bytes() == b"old"
    files.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    files.write(path, b"old")
    code = (
        "import os, sys, pathlib; from kvq_core.machine import files\n"
        "with files.aside(pathlib.Path(sys.argv[1])) as new:\n"
        "    new.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], env=os.environ).returncode == -9
    assert path.read_bytes() == b"old"
    files.write(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"value": 1}', '{"value": 2, "sha256": "0"}'])
def test_a_damaged_memo_is_none(tmp_path, damage):
    path = tmp_path / "memo.json"
    assert files.read_memo(path) is None
    assert files.keep_memo(path, {"a": [1, 2.5, None, "ü"]})
    assert files.read_memo(path) == {"a": [1, 2.5, None, "ü"]}
    path.write_text(damage)
    assert files.read_memo(path) is None


def test_a_flipped_bit_in_a_memo_is_noticed(tmp_path):
    path = tmp_path / "memo.json"
    files.keep_memo(path, {"hash": "abc"})
    sealed = json.loads(path.read_text())
    sealed["value"]["hash"] = "abd"
    path.write_text(json.dumps(sealed))
    assert files.read_memo(path) is None


def test_a_memo_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert not files.keep_memo(Path(tmp_path / "file" / "memo"), 1)


def test_a_file_that_comes_while_a_folder_is_removed_goes_with_it(tmp_path, monkeypatch):
    """As of somebody who looked a run up just before it was moved there."""
    rmdir, came = os.rmdir, []

    def late(path, **how):
        if not came:
            came.append((next(tmp_path.iterdir()) / "late").write_text("looked at"))
        rmdir(path, **how)

    monkeypatch.setattr(os, "rmdir", late)
    with files.folder_aside(tmp_path, "run") as new:
        (new / "removed").mkdir()
    assert came and list(tmp_path.iterdir()) == []


def test_children_are_started_deaf_to_ctrl_c_and_this_process_hears_it_afterwards():
    asks = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

    def child() -> str:
        return subprocess.run([sys.executable, "-S", "-c", asks], capture_output=True, text=True).stdout.strip()

    with not_for_children():
        assert child() == "True"
    assert child() == "False" and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
