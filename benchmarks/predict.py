"""Does the picture predict? Lanes of the study that ships, on its prompts, which are cut short and read in full
precision: each whole with captures, and each of its layers alone. What is done is kept and not done again; a busy
machine changes none of it.

``python benchmarks/predict.py --model gguf:1d9614638d18024d`` measures the second model.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, keep
from kvq_core.claims.side_by_side import short_title
from kvq_core.recommend.predict import cells_of, correlations, look, model_of, work_sentence
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.spec import DEFAULT_MODEL, Lane
from kvq_core.studies.cells import CellPlan, plan
from kvq_core.studies.example import example_spec
from kvq_core.studies.spec import StudySpec

PROMPTS = ("prose-lighthouse", "prose-market", "code-cache", "tools-travel", "long-bridge")
CHARACTERS = 700  # of a prompt's beginning
SCORED = 12  # positions
LANES = ("K q4_0, V q8_0", "K q8_0, V q4_0", "4 bits per token, centred", "KIVI 2-bit", "q8_0", "q4_0")
FEWER = {"gguf:1d9614638d18024d": 4}  # lanes of models that take longer
WINDOW = {"residual_length": 32}  # of KIVI: half of so short a prompt would lie in its own


def asked(model: str) -> StudySpec:
    found = example_spec()
    known = {lane.label: lane for lane in found.comparison.lanes}
    lanes = tuple(_lane(known[label]) for label in LANES[: FEWER.get(model)])
    rows = [row for row in found.prompts.read()[0] if row.id in PROMPTS]
    short = tuple(row.model_copy(update={"prompt": row.prompt[:CHARACTERS], "tools": ()}) for row in rows)
    comparison = found.comparison.model_copy(update={"lanes": lanes, "max_new_tokens": SCORED + 1})
    return StudySpec(models=(model,), prompts=type(found.prompts)(rows=short), comparison=comparison)


def _lane(lane: Lane) -> Lane:
    """It, its prompt read in full precision."""
    told = lane.model_dump(mode="json", exclude_defaults=True, exclude={"prefill"})
    if lane.method == "kivi":
        told["knobs"] = {**told["knobs"], **WINDOW}
    return Lane.model_validate(told)


def measured(planned: CellPlan) -> dict[str, Any]:
    cells = cells_of(planned, None)
    loaded = model_of(cells)
    print(work_sentence(loaded, cells), file=sys.stderr)
    seen = []
    for each in look(loaded, cells):
        seen.append(each)
        print(f"{len(seen)} of {len(cells)} prompts, {each.seconds:.0f} s", file=sys.stderr, flush=True)
    about = {"model": short_title(cells[0].title), "results_version": RESULTS_VERSION, "scored": SCORED}
    about |= {"prompt_tokens": [cell.tokens for cell in cells], "lanes": [lane.label for lane in cells[0].spec.lanes]}
    return {**about, "date": time.strftime("%Y-%m-%d"), "rows": correlations(seen)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=HERE / "predict.json")
    arguments = parser.parse_args()
    keep(arguments.out, arguments.model, measured(plan(asked(arguments.model))))


if __name__ == "__main__":
    main()
