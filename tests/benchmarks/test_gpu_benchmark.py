"""The GPU benchmark on a machine without one: its dry run, what it goes on with, and what it says of made-up ones."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
CACHES = ("kivi-2", "innerq-hybrid-2", "kivi-4")
STEP = {"fp16_sdpa", "fp16_matmul", "fp16_read", "fp16_bytes"} | {
    f"{cache}{row}" for cache in CACHES for row in ("", "_read", "_bytes")
}
# What each operation stands beside: products in fp16, dequantizing first, the reference or a copy, and the roofline.
ROWS = {
    "packed_scores": PRODUCT,
    "packed_values": PRODUCT,
    "quantize_pack": PLAIN,
    "unpack_dequantize": PLAIN,
    "decode_attention": STEP,
    "squat_quantize": {"fused", "torch", "quantize_pack", "copy", "roofline"},
    "latent_scores": METHOD,
    "codebook_scores": METHOD,
    "codebook_values": METHOD,
    "mixed_scores": METHOD,
    "mixed_values": METHOD,
}
PART_OF_A_STEP = "round_q8_0"  # of the engine's, which is timed as a whole
STEPS = {"decode", "eager", "layers"}  # in which decode_attention is measured


def imported(name):
    """A module of the benchmark, which imports its neighbours by their bare names."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPT.parent))


def operations():
    """Names of all operations with a kernel: each asks under its name which path to take."""
    sources = (file.read_text() for file in (ROOT / "kernels" / "kvq_kernels").glob("*.py"))
    return {name for source in sources for name in re.findall(r'use_triton\("(\w+)"', source)} - {PART_OF_A_STEP}


def bench(*arguments):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, arguments)])
    return imported("gpu").main()


@pytest.mark.slow
def test_the_dry_run_goes_on_where_it_was_and_never_passes_for_a_measurement(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "--dry-run", "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    rows, summary = printed.split("\n\n", 1)
    assert rows.count("\n| decode/") == 2 * len(CACHES) and rows.count("\n| layers/") == 2 * len(CACHES)
    assert summary.startswith("DRY RUN on a CPU with tiny shapes: these are no measurements.")
    assert "Targets" not in summary
    (file,) = tmp_path.iterdir()
    first, *lines = file.read_text().splitlines()
    found = {line["case"]: line["numbers"] for line in map(json.loads, lines)}
    assert {case.split("/")[0] for case in found} == {*operations(), *STEPS, "launch", "generate", "batch"} - {
        "decode_attention"
    }
    for operation, names in ROWS.items():
        parts = STEPS if operation == "decode_attention" else {operation}
        for part in parts:
            assert names <= set(next(numbers for case, numbers in found.items() if case.startswith(f"{part}/"))), part
    file.write_text("\n".join([first, *lines[:-2], lines[-1][:40]]))  # one is gone, and one was being written
    assert run(monkeypatch, "--dry-run", "--out", tmp_path) == 0
    kept = file.read_text().splitlines()
    assert kept[: len(lines) - 1] == [first, *lines[:-2]]
    assert [json.loads(line)["case"] for line in kept[-2:]] == [json.loads(line)["case"] for line in lines[-2:]]


@pytest.mark.slow
def test_without_a_gpu_nothing_is_measured_and_little_is_needed(tmp_path):
    """The machine it is for has torch, triton, numpy and nothing else of this project's requirements."""
    needs = f"import sys; sys.argv = ['gpu.py', '--out', {str(tmp_path)!r}]; sys.path.insert(0, {str(SCRIPT.parent)!r})"
    loaded = "{'kvq_core', 'pydantic', 'transformers', 'yaml'} & set(sys.modules)"
    done = bench("-c", f"{needs}; import gpu; status = gpu.main(); print({loaded}, status)")
    assert done.stdout.split() == ["set()", "2"] and "No GPU was found" in done.stderr
    assert not list(tmp_path.iterdir())


def test_every_operation_has_its_name_in_the_tests_and_the_benchmark():
    tests = "".join(file.read_text() for file in (ROOT / "tests" / "kernels").glob("check_*.py"))
    assert operations() == set(ROWS)
    for name in operations():
        assert re.search(rf"def test_{name}(_|\()", tests), f"tests/kernels has no test_{name}"


def test_the_case_that_matters_comes_first_and_what_could_flatter_is_not_left_out():
    cases = imported("gpu_decode_cases")
    first, *others = cases.STEPS
    assert first == ("decode", "Llama-3.1-8B", 1, 65536)
    early = others[:8]
    shapes = [cases.MODELS[step.model] for step in early]
    assert {8, 32} <= {step.batch for step in early} and 8 in {shape.shared for shape in shapes}
    assert 64 in {shape.head_dim for shape in shapes} and any(step.tokens % 128 for step in early)
    assert any(step.part == "layers" and cases.MODELS[step.model].layers == 32 for step in early)
    assert all(step.part != "eager" for step in early)  # from a graph, but for one that says what launching costs


def test_what_other_kernels_or_versions_did_is_not_gone_on_with(monkeypatch):
    results = imported("gpu_results")
    facts = {"torch": "2.11", "triton": "3.6", "cuda": "13.0"}
    mark = results.mark(facts)
    assert results.mark(facts) == mark
    assert len({mark, *(results.mark(facts | {name: "other"}) for name in facts)}) == 4
    monkeypatch.setattr(results, "kernels_fingerprint", lambda: "changed")
    assert results.mark(facts) != mark


def test_a_case_is_kept_with_the_card_that_measured_it(tmp_path):
    """Of one device there are many, and a file is gone on with on whichever is there."""
    results, file = imported("gpu_results"), tmp_path / "x.jsonl"
    for card, bandwidth in (("one", 1.0), ("other", 2.0)):
        facts = {"device": "X1", "card": card, "copy_bandwidth": bandwidth}
        results.Results(file, facts).get(f"case of {card}", dict)
    first, *cases = map(json.loads, file.read_text().splitlines())
    assert first["card"] == "one"
    assert [(each["case"], each["card"], each["copy_bandwidth"]) for each in cases] == [
        ("case of one", "one", 1.0),
        ("case of other", "other", 2.0),
    ]


def test_fp16_is_asked_in_every_way_and_with_values_of_its_own():
    """All ways agree with one another, as far as they run here."""
    baselines = imported("gpu_baselines")
    q, keys, values = torch.randn(2, 4, 1, 32), torch.randn(2, 2, 50, 32), torch.randn(2, 2, 50, 32)
    calls = baselines.fp16_calls(q, [(keys, values)])
    assert {"fp16_sdpa", "fp16_flash", "fp16_cudnn", "fp16_efficient", "fp16_matmul"} == set(calls)
    (expected,), (found,) = calls["fp16_sdpa"](), calls["fp16_matmul"]()
    assert torch.allclose(found.reshape(expected.shape), expected, atol=1e-5)
    with pytest.raises(AssertionError):
        baselines.fp16_calls(q, [(keys, keys)])


def test_what_does_not_run_is_left_out_and_the_others_take_turns(capsys):
    clock, order = imported("gpu_timing").Clock("cpu", runs=1, rounds=3, warm_up=1), []

    def broken():
        raise RuntimeError("no such kernel\nand much more")

    found = clock.race({"a": lambda: order.append("a"), "none": broken, "b": lambda: order.append("b")})
    assert list(found) == ["a", "b"] and order == ["a", "b", *"ab" * 3]
    assert all(len(timing["rounds"]) == 3 and timing["q1"] <= timing["ms"] <= timing["q3"] for timing in found.values())
    assert capsys.readouterr().err == "none: no such kernel\n"


def timing(*rounds):
    return {
        "ms": sorted(rounds)[len(rounds) // 2],
        "q1": min(rounds),
        "q3": max(rounds),
        "rounds": list(rounds),
        "runs": 9,
    }


@pytest.mark.parametrize(
    ("ours", "word"), [((0.10, 0.11, 0.10), "held"), ((0.30, 0.31, 0.30), "missed"), ((0.11, 0.14, 0.12), "open")]
)
def test_targets_are_held_missed_or_open_by_their_error_bars(ours, word):
    """Numbers made for the purpose: a read takes 0.1 ms, the fastest fp16 attention 0.5."""
    numbers = {
        "kivi-2": timing(*ours),
        "kivi-2_read": timing(0.1, 0.1, 0.1),
        "kivi-2_bytes": 200e6,
        "fp16_sdpa": timing(0.9, 0.9, 0.9),
        "fp16_flash": timing(0.5, 0.5, 0.5),
        "fp16_read": timing(0.3, 0.3, 0.3),
        "fp16_bytes": 900e6,
    }
    told = imported("gpu_verdicts").verdicts("NVIDIA H100", {"decode/m/b1/65536": numbers})
    assert [line.split(":")[0] for line in told] == [f"- {word}", f"- {word}"]
    assert "times as fast as fp16_flash, the fastest in fp16" in told[1] and "at least 4" in told[1]


def test_targets_follow_the_gpu_and_leave_small_caches_out():
    verdicts = imported("gpu_verdicts").verdicts
    numbers = {
        "kivi-2": timing(0.14),
        "kivi-2_read": timing(0.1),
        "kivi-2_bytes": 200e6,
        "fp16_flash": timing(0.5),
        "fp16_bytes": 900e6,
    }
    case = {"layers/m/b1/65536": numbers}
    assert [line[2:6] for line in verdicts("NVIDIA H200", case)] == ["held", "held"]  # 71 % and 3.6 times
    assert [line[2:6] for line in verdicts("NVIDIA H100", case)] == ["miss", "miss"]
    small = {"decode/m/b1/8192": numbers | {"kivi-2_bytes": 9e6}, "eager/m/b1/65536": numbers}
    assert verdicts("NVIDIA H100", small) == []


def test_a_case_that_fails_is_tried_again_later_and_holds_up_no_other(tmp_path, capsys):
    def broken(setting):
        raise RuntimeError("no such kernel")

    gpu, results = imported("gpu"), imported("gpu_results")
    fine = ("fine/m/1", lambda setting: setting.beside("missing", lambda: broken(setting)) | {"x": 1.0})
    facts = imported("gpu_timing").machine("cpu")
    for _ in range(2):
        assert gpu.measure(tmp_path / "x.jsonl", facts, [("broken/m/1", broken), fine], 60) == 1
        assert results.Results(tmp_path / "x.jsonl").cases == {"fine/m/1": {"x": 1.0}}
    assert gpu.measure(tmp_path / "y.jsonl", facts, [fine, fine], -1) == 0  # the minutes are over
    assert results.Results(tmp_path / "y.jsonl").cases == {}
    assert "2 cases are left for another call" in capsys.readouterr().err


@pytest.mark.compiler
@pytest.mark.parametrize("block", [2048, 8192])
def test_the_ceiling_is_read_in_16_bytes_a_thread(block):
    from kvq_kernels.launch import Launch, LaunchRecord

    from benchmarks.aot.compiler import compile_for

    kernel = imported("gpu_read_kernel").read_kernel
    tensors = {"x": torch.zeros(4, dtype=torch.int32), "out": torch.zeros(4, dtype=torch.int32), "count": 1 << 20}
    made = compile_for(LaunchRecord(kernel, tensors, {"BLOCK": block}, Launch(block, block // 512, 3)), 90)
    moved = {**made.loop.copies, **made.loop.loads}
    assert set(moved) == {16} and made.stack == 0
