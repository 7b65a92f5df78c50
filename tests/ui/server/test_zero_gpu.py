"""A comparison as one call to a borrowed GPU: in a forked process, with only plain data crossing."""

import json
import os
import subprocess
import sys
import time
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import pytest

from kvq_core.errors import KvqError
from kvq_core.pipeline.compare import run
from kvq_core.record.store import open_store
from kvq_core.spec import DEFAULT_MODEL
from tests.support.zero_gpu_session import spec
from ui.server import zero_gpu
from ui.service.jobs import Jobs
from ui.service.line import WaitingLine

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def session(real_model, tmp_path_factory) -> dict:
    """What a fresh server on ZeroGPU, whose own process never computes, saw of a visitor's comparisons."""
    env = {
        **os.environ,
        "SPACES_ZERO_GPU": "true",
        "SPACE_ID": "somebody/kvq",
        "KVQ_MODELS": DEFAULT_MODEL,
        "KVQ_STORE": str(tmp_path_factory.mktemp("zero") / "store"),
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT / "tests" / "spaces_stand_in", ROOT, ROOT / "kernels"])),
    }
    command = [sys.executable, "-m", "tests.support.zero_gpu_session"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=230)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.long("programs", sample=0)
def test_a_comparison_is_one_call_in_another_process(session):
    assert session["elsewhere"] == [True] and len(session["asked"]) == 1 and session["steps"] >= 5
    assert session["stored"] and session["reused"]


@pytest.mark.long("programs", sample=0)
def test_what_comes_back_is_what_a_run_here_gives(session):
    record = run(spec(6), open_store())
    assert session["run"] == record.id
    kld = record.lanes[0].metrics.kld_mean * record.lanes[0].metrics.n_scored
    assert session["sum"] == pytest.approx(kld, rel=1e-3)
    assert set(session["tensors"].values()) == {"torch"} and "lane/0/kld" in session["tensors"]


def test_the_gpu_is_asked_for_as_long_as_the_run_is_estimated_to_take(session, monkeypatch):
    found, asked = zero_gpu.estimate(spec(6)), {}
    for expected in (None, 1.0, 30.0, 900.0):
        monkeypatch.setattr(
            zero_gpu, "estimate", lambda s, e=expected: replace(found, cost=replace(found.cost, seconds=e))
        )
        asked[expected] = zero_gpu.seconds(spec(6), None)
    assert asked == {None: zero_gpu.USUAL_S, 1.0: zero_gpu.SHORTEST_S, 30.0: 70, 900.0: zero_gpu.LONGEST_S}
    assert all(zero_gpu.SHORTEST_S <= each <= zero_gpu.LONGEST_S for each in session["asked"])


def test_an_error_keeps_its_words(session):
    kind, words = session["too_long"]
    assert kind == "SpecError" and "more than the 8192 tokens of context" in words


def test_closing_the_stream_ends_the_work_and_keeps_nothing(session):
    assert session["cancelled"]


def test_no_quota_is_told_without_markup(session):
    assert session["busy"] == ["LimitError", "ZeroGPU quota exceeded: Quota exceeded. Create a free account"]


def test_without_the_package_the_server_says_so():
    with pytest.raises(KvqError, match="'spaces' is missing"):
        zero_gpu.prepare()


def test_work_knows_the_request_it_came_from():
    """Which visitor pays for the GPU is read from Gradio's context, in the thread that does the work."""
    asked, seen = ContextVar("asked", default="nobody"), []

    def work():
        seen.append(asked.get())
        yield

    jobs = Jobs(WaitingLine())
    asked.set("a visitor")
    job = jobs.watch(jobs.start("session", work).ticket)
    while not job.over:
        time.sleep(0.01)
    assert seen == ["a visitor"]
