"""What a study costs beside its cells, into benchmarks/studies.json: planning, going on, opening, what workers bring.

``python benchmarks/studies.py [--parts plan resume open memory coordinator workers]``. All but ``workers`` are CPU
seconds, or bytes, and may run on a busy machine; ``workers`` is a ratio of wall times and needs two idle cores.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import psutil

from kvq_core.machine.memory import release_memory
from kvq_core.machine.progress import Progress
from kvq_core.record.store import Store, open_store
from kvq_core.studies.cells import CellPlan, plan
from kvq_core.studies.rows import Row, keep_rows
from kvq_core.studies.spec import parse_study
from kvq_core.studies.study import run_plan, stored_study
from tests.support.study_models import study_data, write_model

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("studies.json")
CELLS, PROMPT_WORDS = 10_000, 68  # about 100 tokens with the chat template's own
SHORT = 16  # cells of a short study
LANES = [{"method": "kivi"}, {"method": "per_token"}, {"method": "squat"}]
WORDS = "the river moved and an old bridge stood on dry stones while people crossed by rope in the morning".split()


def planned(prompts: int, lanes: list[dict[str, Any]]) -> CellPlan:
    """Of the bundled model, every prompt another."""
    words = [[WORDS[(at * 7 + n * n) % len(WORDS)] for n in range(PROMPT_WORDS)] for at in range(prompts)]
    rows = [{"id": f"p{at}", "prompt": f"{' '.join(each)} {at}"} for at, each in enumerate(words)]
    return plan(parse_study({"prompts": {"rows": rows}, "lanes": lanes}))


def filled(study: CellPlan, store: Store, scored: int) -> None:
    """Keep drawn rows of every cell, as a study that is done has them."""
    draw = np.random.default_rng(0)
    keep_rows(store, study.id, (row for cell in study.cells for row in _rows(cell, draw, scored)))


def _rows(cell: Any, draw: np.random.Generator, scored: int) -> list[Row]:
    rows = []
    for at, lane in enumerate(cell.spec.lanes):
        kld = draw.lognormal(-4 + at / 10, 0.5, scored)
        counts = {"scored": scored, "flips": 1, "near_tie_flips": 0, "prompt_tokens": cell.tokens}
        figures = {
            "kld_mean": kld.mean(),
            "kld_p99": kld.max(),
            "kld_max": kld.max(),
            "acceptance": 0.9,
            "kv_ratio": 0.2,
        }
        lists = {"kld": kld, "same_top": kld < 1, "top_prob": draw.random(scored), "structural": kld < 0.01}
        names = {
            "run": cell.id,
            "model": cell.title,
            "prompt": cell.prompt.id,
            "group": "",
            "tier": "close",
            "repeats": False,
        }
        rows.append({**names, "lane": lane.label, "at": at, **counts, **figures, **lists})
    return rows


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def of_plan() -> dict[str, float]:
    planned(5, LANES)  # imports
    seconds, study = cpu(lambda: planned(CELLS, LANES))
    return {"cells": CELLS, "tokens": study.cells[0].tokens, "cpu_s": seconds, "target_s": 5}


def of_resume() -> dict[str, float]:
    study = planned(CELLS, LANES)
    with tempfile.TemporaryDirectory() as place:
        store = open_store(place)
        filled(study, store, 47)
        seconds, result = cpu(lambda: run_plan(study, store))
    assert result.cells["done"] == CELLS
    return {"cells": CELLS, "cpu_s": seconds, "target_s": 10}


def of_open() -> dict[str, float]:
    lanes = [{"method": "per_token", "label": f"lane {at}"} for at in range(20)]
    study = planned(200, lanes)
    with tempfile.TemporaryDirectory() as place:
        store = open_store(place)
        filled(study, store, 63)
        cpu(lambda: stored_study(planned(6, lanes), store).summary())  # imports
        seconds, _ = cpu(lambda: stored_study(study, store).summary())
    return {"prompts": 200, "lanes": 20, "cpu_s": seconds, "target_s": 2}


def of_memory() -> dict[str, Any]:
    """Bytes of a worker after a tenth of 200 cells, and after all of them."""
    held: dict[int, int] = {}

    def progress(at: Progress) -> None:
        if at.doing == "Computing" and at.done in (20, 200):
            release_memory()
            held[at.done] = psutil.Process().memory_info().rss

    with tempfile.TemporaryDirectory() as place:
        data = study_data(write_model(Path(place) / "tiny"), 200)
        run_plan(plan(parse_study(data)), open_store(place + "/store"), progress=progress)
    return {"cells": 200, "bytes": [held[20], held[200]], "grown_bytes": held[200] - held[20]}


def of_coordinator() -> dict[str, float]:
    """CPU seconds of the process that gives out cells, once it has planned, and of its two workers."""
    rows = [{"id": str(at), "prompt": f"Tell me about {word} and {at}."} for at, word in enumerate(WORDS[:SHORT])]
    study = plan(parse_study({"prompts": {"rows": rows}, "max_new_tokens": 64, "lanes": LANES}))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        own, result = cpu(lambda: run_plan(study, open_store(place), workers=2))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert result.cells["done"] == SHORT
    return {"cells": SHORT, "own_cpu_s": own, "workers_cpu_s": theirs, "share": own / (own + theirs), "target": 0.05}


def of_workers() -> dict[str, float]:
    """Wall seconds of the same study with one worker and with two, one thread each."""
    seconds = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            rows = [
                {"id": str(at), "prompt": f"Tell me about {word} and {at}."} for at, word in enumerate(WORDS[:SHORT])
            ]
            file = Path(place) / "study.json"
            file.write_text(json.dumps({"prompts": {"rows": rows}, "max_new_tokens": 64, "lanes": LANES}))
            env = {**os.environ, "KVQ_STORE": f"{place}/store", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "kvq_core", "study", "--spec", str(file), "--workers", str(workers)]
            began = time.perf_counter()
            subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
            seconds[workers] = time.perf_counter() - began
    return {"one_s": seconds[1], "two_s": seconds[2], "ratio": seconds[1] / seconds[2], "target": 1.6}


PARTS = {
    "plan": of_plan,
    "resume": of_resume,
    "open": of_open,
    "memory": of_memory,
    "coordinator": of_coordinator,
    "workers": of_workers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    found = json.loads(FILE.read_text()) if FILE.is_file() else {}
    for name in parser.parse_args().parts:
        found[name] = PARTS[name]()
        print(name, found[name], flush=True)
        FILE.write_text(json.dumps({each: found[each] for each in PARTS if each in found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
