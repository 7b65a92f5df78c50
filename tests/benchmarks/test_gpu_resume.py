"""Resuming the kernels' tests, here of made-up tests on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
TESTS = """
from pathlib import Path
def test_a(): pass
def test_b(): assert Path("fixed").exists()
def test_c(): pass
"""
RUN = """
import sys, pytest
from pathlib import Path
from resume import Resume
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", "none.ini", "test_x.py"],
                     plugins=[Resume(Path(".passed"), sys.argv[1])]))
"""


def run(folder, mark):
    command = [sys.executable, "-c", RUN, mark]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": HERE / "kernels"}
    ).stdout


@pytest.mark.slow
def test_what_passed_is_left_out_until_everything_has(tmp_path):
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "none.ini").write_text("[pytest]\n")
    assert "1 failed, 2 passed" in run(tmp_path, "one")
    assert "1 failed, 2 deselected" in run(tmp_path, "one")
    assert "1 failed, 2 passed" in run(tmp_path, "changed sources")
    (tmp_path / "fixed").touch()
    assert "1 passed, 2 deselected" in run(tmp_path, "changed sources")
    assert not (tmp_path / ".passed").exists()
    assert "3 passed" in run(tmp_path, "changed sources")
