"""What ``advise`` takes from nothing: 12 prompts of 500 tokens, 48 new ones each, on the bundled model.

Nothing is stored before but the converted model: inspection, study, scores of layers and the check of a policy are all
computed. ``uniform``: the formats of all engines, at a tolerance that one of them meets; ``engine``: those of one
engine; ``layers``: all formats at a tolerance that none meets, so that single layers are scored and policies run. Wall
seconds by stage need an idle machine; CPU seconds and the answer do not. Prompts are stretches of the standard
library's help topics.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.measured import HERE
from benchmarks.policies import texts
from kvq_core.machine.progress import Progress
from kvq_core.models import load
from kvq_core.recommend.decision import DecisionRequest
from kvq_core.recommend.recommend import decide
from kvq_core.record.store import open_store
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL

FILE = HERE / "advise.json"
PROMPTS, TOKENS = 12, 500
# what is asked, and in how many minutes two idle cores are to answer
PARTS: dict[str, tuple[dict[str, Any], int]] = {
    "uniform": ({"tolerance": "close"}, 15),
    "engine": ({"tolerance": "close", "engine": "llama.cpp"}, 15),
    "layers": ({"tolerance": "0.00005"}, 45),
}


class Stages:
    """Seconds of each thing that was done, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []
        self.last = ""

    def __call__(self, at: Progress) -> None:
        if at.doing != self.last:
            self.told.append((at.doing, time.perf_counter()))
            self.last = at.doing

    def seconds(self, end: float) -> list[dict[str, Any]]:
        ends = [began for _, began in self.told[1:]] + [end]
        return [{"doing": d, "s": until - began} for (d, began), until in zip(self.told, ends, strict=True)]


def measured(part: str, prompts: int, tokens: int) -> dict[str, Any]:
    """In a process of its own, with a home and a store of its own."""
    asked, most = PARTS[part]
    model = load(DEFAULT_MODEL)
    given = texts(model, prompts, tokens)
    models = (settings().home / "models").resolve()
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "models").symlink_to(models)
        os.environ |= {"KVQ_HOME": place, "KVQ_STORE": f"{place}/store"}
        stages, began, cpu = Stages(), time.perf_counter(), _cpu()
        found = decide(
            DecisionRequest.of(**asked),
            model=DEFAULT_MODEL,
            prompts=given,
            store=open_store(),
            progress=stages,
            workers=None,
        )
        ended = time.perf_counter()
    return {
        "title": model.title,
        "asked": asked,
        "prompts": prompts,
        "tokens": tokens,
        "lanes": len(found.advice.front),
        "threads": torch.get_num_threads(),
        "wall_s": ended - began,
        "cpu_s": _cpu() - cpu,
        "stages": stages.seconds(ended),
        "kind": found.advice.kind,
        "label": found.advice.label,
        "layers_scored": found.grounds.scored,
        "policy_runs": found.grounds.policy is not None,
        "target_min": most,
    }


def _cpu() -> float:
    """Seconds of this process and of the workers that it has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a prompt")
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for part in arguments.parts:
        with ProcessPoolExecutor(1, context) as pool:
            found = pool.submit(measured, part, arguments.prompts, arguments.tokens).result()
        held = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
        held[part] = found
        print(part, json.dumps(found), flush=True)
        arguments.out.write_text(json.dumps({name: held[name] for name in PARTS if name in held}, indent=1) + "\n")


if __name__ == "__main__":
    main()
