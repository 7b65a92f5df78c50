"""What documents and the page say of GPUs: every number from a file of results, of these kernels or said not to be."""

import json

import pytest

from benchmarks import by_gpu, by_tuning
from kvq_core.packed.gpus import CHANGED, SHIPPED, MeasuredGpu, measured_gpus

FACTS = {"torch": "2.11", "triton": "3.6", "device": "NVIDIA X1", "kernels": "aaaabbbbccccdddd", "copy_bandwidth": 4e12}


def timing(*rounds: float) -> dict:
    return {"ms": sorted(rounds)[len(rounds) // 2], "q1": min(rounds), "q3": max(rounds), "rounds": list(rounds)}


DECODE = {
    "kivi-2": timing(0.2, 0.2, 0.2),
    "kivi-2_read": timing(0.05, 0.05, 0.05),
    "kivi-2_bytes": 200e6,
    "fp16_sdpa": timing(0.9, 0.9, 0.9),
    "fp16_flash": timing(0.5, 0.5, 0.5),
    "fp16_read": timing(0.3, 0.3, 0.3),
}
FP16 = {"peak_gb": 20.0, "eager": timing(40.0), "graph": timing(8.0, 8.0, 8.0)}
KIVI = {"peak_gb": 16.04, "eager": timing(30.0), "graph": timing(4.0, 5.0, 5.1)}
QUANTIZED = {"copy": timing(0.1), "hybrid_tokens": timing(0.4, 0.5, 0.9), "hybrid_tokens_roofline": 0.3}
CASES = {
    "decode/Llama-3.1-8B/b8/65573": DECODE,
    "layers/Llama-3.1-8B/b1/8192": DECODE,
    "generate/fp16/8": FP16,
    "generate/kivi/8": KIVI,
    "quantize_pack/Llama-3.1-8B/8192": QUANTIZED,
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file of results; the present kernels are those of FACTS."""
    monkeypatch.setattr(by_tuning, "kernels_fingerprint", lambda: FACTS["kernels"])

    def write(name="x1-0", cases=CASES, **facts):
        lines = [FACTS | facts, *({"case": case, "numbers": numbers} for case, numbers in cases.items())]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return tmp_path

    return write


def test_every_part_of_a_file_is_told_with_its_numbers_and_what_it_was_measured_with(write):
    told = by_gpu.gpu_part(write())
    assert told.startswith("### NVIDIA X1\n") and "torch 2.11 and Triton 3.6, of the kernels aaaabbbb." in told
    assert "4,000 GB/s" in told and "aaaabbbbc" not in told
    assert (
        "| Llama-3.1-8B, batch 8, 65,573 tokens | KIVI, 2 bits | 200.0 | 0.2000 (0.2000 to 0.2000) | 0.0500 | "
        "0.25 (0.25 to 0.25) | flash | 0.5000 | 2.50 (2.50 to 2.50) |"
    ) in told
    assert "| Llama-3.1-8B, batch 1, 8,192 tokens, all layers | KIVI, 2 bits |" in told
    assert "| fp16 | 8 | 8.00 (8.00 to 8.00) | 1000 | - | 20.0 | 40.00 (40.00 to 40.00) |" in told
    assert (
        "| KIVI, 2 bits | 8 | 5.00 (4.00 to 5.10) | 1600 | 1.60 (1.57 to 2.00) | 16.0 | 30.00 (30.00 to 30.00) |"
    ) in told
    assert "| Model | Groups | 8,192 tokens |" in told and "| Llama-3.1-8B | hybrid, along tokens | 0.60 |" in told


def test_targets_are_told_by_the_benchmarks_verdicts_the_missed_like_the_held(write):
    told = by_gpu.gpu_part(write())
    assert "(1 held, 1 open, 3 missed)" in told
    assert "| Reading, KIVI, 2 bits: of a read of as many bytes | 0.8 | - | - | 2: 0.25 |" in told
    assert "| Reading, KIVI, 2 bits: times as fast as the fastest fp16 attention | 4 | - | - | 1: 2.50 |" in told
    assert "| A whole model, KIVI, 2 bits, batch 8: tokens a second, times fp16 | 1.3 | 1: 1.60 | - | - |" in told
    assert "| `quantize_pack`: of a copy's bandwidth | 0.7 | - | 1: 0.60 | - |" in told
    assert "1 are held, 1 open and 3 missed" in by_gpu.gpu_summary_part(write())


def test_a_verdict_of_another_form_is_not_passed_over(write, monkeypatch):
    monkeypatch.setattr(by_gpu, "verdicts", lambda device, cases: ["- held: something else"])
    with pytest.raises(ValueError, match="something else"):
        by_gpu.gpu_part(write())


@pytest.mark.parametrize("kernels", [FACTS["kernels"], "0000111122223333"])
def test_numbers_of_other_kernels_are_said_to_be_so_everywhere(write, kernels):
    folder = write(kernels=kernels)
    (device,) = by_gpu.shipped(folder)
    for text in (by_gpu.gpu_part(folder), by_gpu.gpu_summary_part(folder), device.summary):
        assert (CHANGED in text) is (kernels != FACTS["kernels"])


def test_of_a_device_one_file_is_told_of_these_kernels_first_then_the_one_with_most(write):
    few = {"generate/fp16/8": FP16}
    write("x1-9", few)
    write("x1-1", CASES)
    write("x1-2", few, kernels="other")
    folder = write("a-0", few, device="A0")
    write("dry-run", CASES, device="cpu")
    assert [found.file.stem for found in by_gpu.newest(folder)] == ["a-0", "x1-1"]
    write("x1-1", CASES, kernels="other")
    assert [found.file.stem for found in by_gpu.newest(folder)] == ["a-0", "x1-9"]
    assert by_gpu.gpu_part(folder).count("### ") == 2 and by_gpu.gpu_summary_part(folder).count("| A0 |") == 1


def test_what_did_not_fit_has_no_row_and_nothing_is_compared_with_it(write):
    folder = write(cases={"generate/fp16/8": {"out_of_memory": 1.0}, "generate/kivi/8": KIVI})
    (row,) = by_gpu.shipped(folder)[0].rows
    assert row == ("KIVI, 2 bits", 8, 1600.0, None, 16.04)
    assert "| NVIDIA X1 | KIVI, 2 bits | 8 | 1600 | - | 16.0 |" in by_gpu.gpu_summary_part(folder)
    assert "Target" not in by_gpu.gpu_part(folder)


def test_while_nothing_was_measured_nothing_is_told(tmp_path, write):
    for folder in (tmp_path, write(device="cpu"), write(cases={})):
        assert by_gpu.gpu_part(folder) == by_gpu.gpu_summary_part(folder) == by_gpu.NOTHING
        assert by_gpu.shipped(folder) == []
    assert measured_gpus(tmp_path / "none.json") == []


def test_the_page_reads_what_was_written_for_it(write, tmp_path):
    by_gpu.ship(write(), tmp_path / "gpu.json", tmp_path / "latency.json")
    (read,) = measured_gpus(tmp_path / "gpu.json")
    assert isinstance(read, MeasuredGpu) and read.rows == (
        ("fp16", 8, 1000.0, None, 20.0),
        ("KIVI, 2 bits", 8, 1600.0, 1.6, 16.04),
    )
    assert (read.held, read.open, read.missed, read.changed) == (1, 1, 3, False)


def test_the_file_that_ships_is_what_the_results_say():
    assert SHIPPED.read_text(encoding="utf-8") == by_gpu.as_json(by_gpu.shipped()), "run: make readme"


def test_every_decode_step_and_verdict_that_is_stored_is_told():
    """Of the files that are here, however many."""
    for found in by_gpu.newest():
        told = list(by_gpu._device(found))
        steps = [numbers for case, numbers in found.cases.items() if case.split("/")[0] in by_gpu.STEPS]
        packed = sum(name.endswith("_bytes") and name != "fp16_bytes" for numbers in steps for name in numbers)
        assert sum(part.count("\n") - 1 for part in told if part.startswith(by_gpu.head())) == packed
        assert sum(by_gpu._counts(found).values()) == len(by_gpu.verdicts(found.facts["device"], found.cases))


def test_a_profile_is_told_of_the_device_that_it_was_taken_on(write):
    loop = {"instructions": 900, "samples": {"wait": 0.321, "math": 0.2}}
    seen = {"cache": "kivi-2", "us": 93.1, "issue_slots": 0.49, "warps_a_processor": 7.4, "registers": 255.0}
    seen |= {"kernels": "aaaabbbbccccdddd", "dram_percent": 46.8, "main_loop": loop}
    profile = {"device": "NVIDIA X1", "with": "a profiler", "step": "a step", "profiles": [seen]}
    folder = write()
    (folder / "profile.json").write_text(json.dumps(profile))
    told = by_gpu.gpu_part(folder)
    assert "A profile (a step; a profiler).\n" in told and CHANGED not in told
    assert "| KIVI, 2 bits | aaaabbbb | 93 | 255 | 7.4 | 49 | 47 | 900 | 32 | 0 |" in told
    profile["profiles"].append(seen | {"kernels": "0000111122223333"})
    (folder / "profile.json").write_text(json.dumps(profile))
    assert f"A profile (a step; a profiler). {CHANGED}\n" in by_gpu.gpu_part(folder)
    (folder / "profile.json").write_text(json.dumps(profile | {"device": "NVIDIA X2"}))
    assert "A profile" not in by_gpu.gpu_part(folder)


def test_what_was_tuned_is_told_beside_what_was_before(write):
    case = {"model": "Llama", "batch": 8, "tokens": 32805, "cache": "kivi-2"}
    case |= {"before": {"ms": 0.12, "fp16_ms": 0.24}, "now": {"ms": 0.08, "fp16_ms": 0.25, "read_ms": 0.05}}
    tuning = {"device": "NVIDIA X1", "torch": "2", "triton": "3", "kernels": "aaaabbbbccccdddd", "before": "00001111"}
    tried = [{"what": "more programs", "ms": [0.09]}]
    folder = write()
    (folder / "tuning.json").write_text(
        json.dumps(tuning | {"with": "so", "cases": [case], "tried_of": "kivi-2", "tried": tried})
    )
    told = by_gpu.gpu_part(folder)
    assert "| Llama, batch 8, 32,805 tokens | KIVI, 2 bits | 0.1200 | 2.00 | 0.0800 | 0.62 | 3.12 |" in told
    assert "| more programs | 0.0900 |" in told and CHANGED not in told
