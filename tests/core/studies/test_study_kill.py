"""kill -9 of what computes a study, at any moment: no cell lost, none doubled, no damaged file."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.campaigns import whole

KILLS = {"shards": 120, "workers": 60, "ray": 20} if whole() else {"shards": 4, "workers": 3, "ray": 0}


@pytest.mark.long("kill")
@pytest.mark.slow
@pytest.mark.timeout(7000 if whole() else 240)
def test_studies_are_whole_whatever_was_killed(tmp_path, record_property):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.study_kills", str(tmp_path), *map(str, KILLS.values())],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([".", "kernels"])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    kills = Counter()
    for series, number, _ in lines:
        kills[series] += int(number)
    record_property("kills", sum(kills.values()))
    assert {said for *_, said in lines} == {"whole"}
    assert all(kills[series] >= least for series, least in KILLS.items())
