"""Tables with a column a model: measuring one model leaves what others gave, and holes have their reason."""

import json
import re

import pytest

from benchmarks import by_model, methods
from benchmarks.by_format import of_family
from benchmarks.measured import figures, keep, table
from kvq_core.methods import methods as all_methods
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.spec import DEFAULT_MODEL
from tests.support.sample_record import make_sample

SPREAD = {"mean": 0.25, "min": 0.1, "max": 0.5}
MEASURED = {"summary": "K2 V2", "key_bits": SPREAD, "value_bits": SPREAD, "kld": SPREAD, "flip_rate": SPREAD}


def shown(monkeypatch: pytest.MonkeyPatch, part, **files: object) -> str:
    monkeypatch.setattr(by_model, "figures", lambda name: files.get(name))
    found = part()
    return found if isinstance(found, str) else table("What | Measured | Target", *found)


@pytest.mark.parametrize("name", ["methods", "policies"])
def test_figures_of_methods_are_of_results_as_they_are_now(name: str) -> None:
    """What a new version of results changes is measured again: benchmarks/methods.py and benchmarks/policies.py."""
    assert {part["results_version"] for part in figures(name).values()} == {RESULTS_VERSION}


def test_measuring_a_model_leaves_what_others_gave(tmp_path) -> None:
    file = tmp_path / "methods.json"
    keep(file, "another/model", {"ratio": 1})
    keep(file, DEFAULT_MODEL, {"ratio": 2})
    keep(file, "another/model", {"ratio": 3})
    assert list(json.loads(file.read_text()).items()) == [
        (DEFAULT_MODEL, {"ratio": 2}),
        ("another/model", {"ratio": 3}),
    ]


def test_models_stand_side_by_side_in_the_methods_table(monkeypatch) -> None:
    setting = {"prompt_tokens": 512, "later_tokens": 128, "texts": ["a", "b"]}
    missing = {"summary": "K1 V1", "error": "There are no keys codebooks like this. Run: train"}
    both = {
        "one": {"model": "One-1B-Instruct", **setting, "methods": {"kivi": MEASURED, "commvq": MEASURED}},
        "other": {"model": "Other-2B", **setting, "methods": {"kivi": MEASURED, "commvq": missing}},
    }
    text = shown(monkeypatch, by_model.methods_part, methods=both)
    assert "| One-1B: KLD, flips | Other-2B: KLD, flips |" in text and "One-1B-Instruct and Other-2B on a CPU" in text
    rows = {line.split("`")[1]: line.split(" | ") for line in text.splitlines() if line.startswith("| `")}
    assert set(rows) == {name for name, cls in all_methods().items() if of_family(name, cls)}
    assert rows["kivi"][3:6] == ["0.2 / 0.2", "0.25 (0.1 to 0.5), 25.0 %", "0.25 (0.1 to 0.5), 25.0 %"]
    assert rows["commvq"][4:6] == ["0.25 (0.1 to 0.5), 25.0 %", missing["error"]]
    assert rows["qaq"][4:6] == ["not measured", "not measured"]


def test_costs_have_a_row_a_model_with_its_target(monkeypatch) -> None:
    job = {"lanes": 7, "prompt_tokens": 500, "new_tokens": 64, "ratio": 2.5, "comparison_s": 5, "generate_s": 2}
    jobs = {"one": job | {"model": "One", "peak_memory_gb": 2, "targets": {"ratio": 3, "peak_memory_gb": 9}}}
    text = shown(monkeypatch, by_model.main_jobs, main_job=jobs)
    assert re.search(r"One: .* 500 prompt tokens, 64 new \| 2\.5 times \(5\.0 s against 2\.0 s\) \| 3\.0 times", text)
    assert "| 2.0 GB | 9 GB |" in text
    found = {
        "model": "One-1B-Instruct (Q4)",
        "bytes": 5e8,
        "conversion": {"seconds": 100.4, "peak_memory_gb": 3.21},
        "first_token_s": 9.87,
        "targets": {"conversion_s": 240, "conversion_gb": 5, "first_token_s": 15},
    }
    text = shown(monkeypatch, by_model.conversion, second_model={"one": found})
    assert "One-1B: a GGUF file of 500 MB" in text and "| 100 s, at most 3.2 GB of memory | 240 s, 5 GB |" in text
    assert "| 9.9 s | 15 s |" in text
    assert shown(monkeypatch, by_model.conversion) == table("What | Measured | Target")


def test_a_lane_that_failed_has_its_reason_in_the_row() -> None:
    record, _ = make_sample()
    lane = record.lanes[0]
    good, bad = lane, lane.model_copy(update={"error": "There are no codebooks.", "metrics": None, "memory": None})
    assert methods.row([good, bad])["error"] == "There are no codebooks."
    assert methods.row([good, good])["kld"]["mean"] == good.metrics.kld_mean


def test_the_default_model_has_figures_of_every_method() -> None:
    measured = figures("methods")
    assert measured is not None and next(iter(measured)) == DEFAULT_MODEL
    found = measured[DEFAULT_MODEL]["methods"]
    assert {name for name, each in found.items() if "kld" in each} == set(all_methods())
