"""The GPU benchmark's script on a machine without one: its dry run, its resuming, and what it says without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


def bench(*arguments):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    return subprocess.run([sys.executable, SCRIPT, *arguments], env=environment, capture_output=True, text=True)


def test_the_dry_run_resumes_and_never_passes_for_a_measurement(tmp_path):
    first = bench("--dry-run", "--out", tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("DRY RUN on a CPU with tiny shapes: these are no measurements.")
    for title in ("Table 3", "Table 4", "Figure 4", "Table 5", "Figure 3", "decode attention"):
        assert title in first.stdout
    files = sorted((tmp_path / "dry-run").glob("*.json"))
    parts = {file.stem.split("--")[0] for file in files}
    assert parts >= {"products", "quantize", "decode", "codebook", "latent", "mixed", "launch", "batch", "machine"}
    case = next(file for file in files if file.stem.startswith("decode--"))
    assert {"sdpa", "kivi", "innerq", "kivi_dequantize_sdpa", "kivi_roofline"} <= set(json.loads(case.read_text()))

    gone, kept = files[3], {file: file.stat().st_mtime_ns for file in files if file != files[3]}
    gone.unlink()
    assert bench("--dry-run", "--out", tmp_path).returncode == 0
    assert gone.is_file() and kept == {file: file.stat().st_mtime_ns for file in kept}


def test_without_a_gpu_nothing_is_measured(tmp_path):
    done = bench("--out", tmp_path)
    assert done.returncode == 2 and "No GPU was found" in done.stderr
    assert not list(tmp_path.iterdir())
