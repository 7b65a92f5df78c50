"""A third model, Qwen2.5-Coder-1.5B-Instruct, for measured tables only: beside its column of the reference table
(``benchmarks/table.py --model``), a main claim of each paper, what inspection names, and llama.cpp's K x V grid on a
few of the table's prompts, the second model's beside it. None of it is timed, and what is done stays.

``python -m benchmarks.third_model FILE [--parts grid]``; some 10 GB of memory.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, figures
from kvq_core.claims import measure_board, measure_missing, papers, setting
from kvq_core.claims.board import Board, read_board, save_board
from kvq_core.inspection.look import Look
from kvq_core.machine import files
from kvq_core.models import LoadedModel, load
from kvq_core.models.gguf.published import SECOND_MODEL
from kvq_core.presets.read import with_bundle
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies.cells import plan
from kvq_core.studies.spec import StudySpec
from kvq_core.studies.study import run_plan
from kvq_core.studies.table import table_spec

BOARD = HERE / "third_board.json"
OUT = HERE / "third_model.json"
MAIN = {  # of each paper the claim of its title or abstract that a small model can judge
    "squat": "squat-quality",
    "svdq": "svdq-quality",
    "commvq": "commvq-quality-1",
    "innerq": "innerq-quality",
    "qaq": "qaq-adaptive",
}
PROMPTS = 4  # of the grid: the table's first of each kind
PARTS = ("inspection", "claims", "grid")


def say(*at: object) -> None:
    print(*at, file=sys.stderr, flush=True)


def inspection(model: LoadedModel) -> dict[str, Any]:
    found = Look(model).inspection()
    return {"layers": model.shape.layers, "at_risk": list(found.at_risk_layers)}


def claims(model: LoadedModel) -> dict[str, Any]:
    """Into BOARD, one by one; of CommVQ there are no codebooks of this model, and none are trained."""
    every = papers()
    chosen = [
        every[name].model_copy(update={"claims": tuple(c for c in every[name].claims if c.id == claim)})
        for name, claim in MAIN.items()
    ]
    if not BOARD.is_file():
        save_board(measure_board(model, chosen[:1], setting(), say), BOARD)

    def keep(board: Board) -> None:
        save_board(board, BOARD)

    keep(measure_missing(model, read_board(BOARD), chosen, setting(), say, keep))
    return {"board": BOARD.name}


def grid_spec(model: str) -> StudySpec:
    """Every K x V of llama.cpp on one prompt of each kind."""
    spec = table_spec(model=model)
    rows = {row.group: row for row in reversed(spec.prompts.read()[0])}
    wide = with_bundle(spec.comparison, "grid:llama.cpp")
    return spec.model_copy(update={"comparison": wide}).whole(tuple(rows.values())[:PROMPTS])


def grid(model: LoadedModel) -> dict[str, Any]:
    """By model the mean KLD of every lane with its interval over prompts, and bits of keys and values."""
    found = {}
    for name in (SECOND_MODEL, model.id):
        result = run_plan(plan(grid_spec(name)), progress=say)
        if result.failed:
            raise SystemExit(next(iter(result.failed.values())))
        lines = result.summary()["lanes"]
        kept = ("label", "kld_mean", "kld_low", "kld_high", "key_bits", "value_bits", "prompts")
        found[lines[0]["model"]] = [{each: line[each] for each in kept} for line in lines]
    return {"results_version": RESULTS_VERSION, "models": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    model = load(str(given.file))
    for part in given.parts:
        found = {**(figures(OUT.stem) or {}), "model": model.id, "title": model.title}
        found[part] = {"inspection": inspection, "claims": claims, "grid": grid}[part](model)
        files.write(OUT, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
