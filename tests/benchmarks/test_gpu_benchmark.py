"""The GPU benchmark's script on a machine without one: its dry run, its resuming, and what it says without a GPU."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kvq_kernels.launch import record_launches

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


ROOT = SCRIPT.parent.parent
METHOD = {"fused", "decode_first", "matmul", "roofline"}
PRODUCT = {"inner", "outer", "inner_symmetric", "inner_hybrid", "matmul", "matmul_roofline"} | {
    f"{kind}_{row}" for kind in ("inner", "outer") for row in ("roofline", "dequantize_matmul")
}
PLAIN = {"copy"} | {
    f"{mode}_{axis}{row}"
    for mode in ("asymmetric", "symmetric", "hybrid")
    for axis in ("tokens", "channels")
    for row in ("", "_torch", "_roofline")
}
# What each operation stands beside: products in fp16, dequantizing first, the reference or a copy, and the roofline.
ROWS = {
    "packed_scores": PRODUCT,
    "packed_values": PRODUCT,
    "quantize_pack": PLAIN,
    "unpack_dequantize": PLAIN,
    "decode_attention": {"sdpa", "matmul", "fp16_roofline", "kivi", "kivi_dequantize_sdpa", "innerq_roofline"},
    "squat_quantize": {"fused", "torch", "quantize_pack", "copy", "roofline"},
    "latent_scores": METHOD,
    "codebook_scores": METHOD,
    "codebook_values": METHOD,
    "mixed_scores": METHOD,
    "mixed_values": METHOD,
}


def operations():
    """Names of all operations with a kernel: each asks under its name which path to take."""
    sources = (file.read_text() for file in (ROOT / "kernels" / "kvq_kernels").glob("*.py"))
    return {name for source in sources for name in re.findall(r'use_triton\("(\w+)"', source)}


def bench(*arguments):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    return subprocess.run([sys.executable, SCRIPT, *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_dry_run_resumes_and_never_passes_for_a_measurement(tmp_path):
    first = bench("--dry-run", "--out", tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("DRY RUN on a CPU with tiny shapes: these are no measurements.")
    for words in ("Table 3", "Table 4", "Figure 4", "Table 5", "Figure 3", "CUDA graph", "kivi dequantized", "No SDPA"):
        assert words in first.stdout
    files = sorted((tmp_path / "dry-run").glob("*.json"))
    parts = {file.stem.split("--")[0] for file in files}
    assert parts == {*operations(), "graph", "launch", "batch", "machine"}
    for part, rows in ROWS.items():
        case = next(file for file in files if file.stem.startswith(f"{part}--"))
        assert rows <= set(json.loads(case.read_text())), part

    gone, kept = files[3], {file: file.stat().st_mtime_ns for file in files if file != files[3]}
    gone.unlink()
    assert bench("--dry-run", "--out", tmp_path).returncode == 0
    assert gone.is_file() and kept == {file: file.stat().st_mtime_ns for file in kept}


def test_what_is_compared_is_read_in_one_way():
    """Codes stay in their words in every fused row: groupings and grids would not be compared else, but kernels."""
    cases, setting = imported("gpu_cases"), imported("gpu_setting").Setting
    clock = imported("gpu_timing").Clock("cpu", runs=1, warm_up=0)
    for shape in cases.MODELS.values():
        few = shape._replace(kv_heads=1, query_heads=shape.shared)
        with record_launches() as launches:
            for case in (cases.packed_scores_case, cases.packed_values_case, cases.decode_attention_case):
                case(setting(clock, 1e12, {}, ()), few, 512)
        found = {entry.kernel.__name__ for entry in launches}
        assert not found & {"packed_scores_kernel", "packed_values_kernel"}, found
        assert {"placed_scores_kernel", "placed_values_kernel", "decode_attention_kernel"} <= found
        assert all(entry.constants.get("PLACED", 1) for entry in launches)


@pytest.mark.slow
def test_without_a_gpu_nothing_is_measured(tmp_path):
    done = bench("--out", tmp_path)
    assert done.returncode == 2 and "No GPU was found" in done.stderr
    assert not list(tmp_path.iterdir())


def test_every_operation_has_its_name_in_the_tests_and_the_benchmark():
    tests = "".join(file.read_text() for file in (ROOT / "tests" / "kernels").glob("check_*.py"))
    assert operations() == set(ROWS)
    for name in operations():
        assert re.search(rf"def test_{name}(_|\()", tests), f"tests/kernels has no test_{name}"


@pytest.mark.parametrize(("fused", "word"), [(0.10, "held"), (0.30, "missed")])
def test_targets_are_listed_with_whether_they_hold(fused, word, tmp_path):
    """Numbers made for the purpose: 0.09 ms is the roofline, fp16 takes 0.5 ms."""
    numbers = {
        "machine": {"device": "made up", "torch": "2", "triton": "3", "copy_bandwidth": 1e12},
        "decode_attention--m--65536": {
            "sdpa": 0.5,
            "kivi": fused,
            "innerq": fused,
            "kivi_roofline": 0.09,
            "innerq_roofline": 0.09,
        },
        "packed_scores--m--512": {"matmul": 0.5, "inner": fused, "outer": 0.13},
        "packed_values--m--512": {"matmul": 0.5, "inner": fused, "outer": 0.13},
        "quantize_pack--m--512": {
            f"{mode}_{axis}{row}": value
            for axis in ("channels", "tokens")
            for mode, row, value in (("hybrid", "", fused), ("symmetric", "", 0.098), ("hybrid", "_roofline", 0.09))
        },
    }
    for name, found in numbers.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    targets = imported("gpu_tables").tables(tmp_path).split("**Targets**")[1].strip().splitlines()
    assert len(targets) == 2 + 2 + 2 + 4
    assert all(line.startswith(f"- {word}: ") for line in targets), targets


def test_a_case_that_fails_is_tried_again_later_and_holds_up_no_other(tmp_path, monkeypatch):
    def broken(setting):
        raise RuntimeError("no such kernel")

    gpu = imported("gpu")
    fine = ("fine/m/1", lambda setting: setting.beside("missing", lambda: broken(setting)) | {"x": 1.0})
    monkeypatch.setattr(gpu, "cases", lambda models, tokens: [("broken/m/1", broken), fine])
    monkeypatch.setattr(gpu, "_batches", lambda device, bandwidth: [])
    for _ in range(2):
        assert gpu._measure(tmp_path, "cpu", []) == 1
        assert {file.stem for file in tmp_path.glob("*.json")} == {"machine", "fine--m--1"}
    assert json.loads((tmp_path / "fine--m--1.json").read_text()) == {"x": 1.0}


def imported(name):
    """A module of the benchmark, which imports its neighbours by their bare names."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPT.parent))
