"""Commands that are interrupted, and readers that stop early."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvq_core.engine.decode import Decode
from tests.support.command_line import ROOT, SPEC
from tests.support.tiny_models import tiny


def left_nothing(folder: Path) -> bool:
    """Neither a run nor a part of one."""
    here = [file.name for file in folder.iterdir()]
    return "out" not in here and not any((folder / "store").glob("*")) and not any(f.startswith(".out-") for f in here)


@pytest.mark.slow
def test_ctrl_c_while_libraries_load_ends_the_process_with_130(tmp_path, spec_file):
    """``ready`` when it is that moment, because a busy machine is slow."""
    tell = "print('ready', file=sys.stderr, flush=True)"
    code = f"import sys\nfrom kvq_core.cli.main import main\n{tell}\nsys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compare", "--spec", str(spec_file(SPEC)), "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background inherit none
    )
    with process:
        try:
            assert process.stderr.readline() == "ready\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert out == "" and "Traceback" not in err and left_nothing(tmp_path)


@pytest.fixture
def interruptible():
    """Workers of xdist ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Freed:
    """An object that is freed when Ctrl-C is pressed: Python drops what is raised then."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


LOST = "something is freed"
LOSES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("moment", ["the model loads", "tokens are decoded", pytest.param(LOST, marks=LOSES)])
def test_ctrl_c_leaves_nothing_and_is_status_130(here, smollm, interruptible, tmp_path, spec_file, monkeypatch, moment):
    model, steps, reached = tiny("llama", tokenizer=smollm.tokenizer), Decode.steps, []

    def interrupt():
        reached.append(moment)
        if moment == LOST:
            Freed()
        else:
            signal.raise_signal(signal.SIGINT)

    def load(*_):
        if moment == "the model loads":
            interrupt()
        return model

    def interrupted(*arguments):
        for step, found in enumerate(steps(*arguments)):
            yield found
            if step == 2:
                interrupt()

    monkeypatch.setattr("kvq_core.pipeline.compare.load", load)
    monkeypatch.setattr(Decode, "steps", interrupted)
    lanes = [{"method": "kivi"}]
    spec = spec_file({**SPEC, "lanes": lanes, "max_new_tokens": 200, "ignore_eos": True})
    result = here("compare", "--spec", spec, "--out", tmp_path / "out")
    assert (result.returncode, result.stdout, reached) == (130, "", [moment])
    assert "Traceback" not in result.stderr and left_nothing(tmp_path)


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m kvq_core methods | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in result.stderr and result.returncode in (0, 141)
