"""The reference table as it is stored: ``python -m kvq_core table`` computes it, this keeps its figures beside the
script, from which ``make readme`` writes its part and the README's and draws docs/table.svg. Nothing is computed here.

A model whose cells are not all stored is left out, and said.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, keep
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies.cells import plan
from kvq_core.studies.result import StudyResult
from kvq_core.studies.study import stored_study
from kvq_core.studies.table import table_spec

FIGURES = ("label", "kld_mean", "kld_low", "kld_high", "key_bits", "value_bits", "flips", "prompts")


def parts(result: StudyResult) -> dict[str, dict[str, Any]]:
    """By model's id its figures; of models all of whose cells are done."""
    summary, found = result.summary(), {}
    for model in result.plan.models:
        cells = [cell for cell in result.plan.cells if cell.model == model]
        title, done = cells[0].title, set(result.table["run"])
        if all(cell.id in done for cell in cells):
            lanes = [line for line in summary["lanes"] if line["model"] == title]
            told = [{name: line[name] for name in FIGURES} for line in lanes]
            tokens = result.plan.spec.comparison.max_new_tokens
            about = {"title": title, "study": result.id, "results_version": RESULTS_VERSION}
            found[model] = {**about, "prompts": len(cells), "tokens": tokens, "lanes": told}
        else:
            print(f"{title}: {sum(cell.id in done for cell in cells)} of {len(cells)} cells are stored; left out.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a further column: of this model, which python -m kvq_core table computed")
    parser.add_argument("--out", type=Path, default=HERE / "table.json")
    arguments = parser.parse_args()
    for model, part in parts(stored_study(plan(table_spec(model=arguments.model)))).items():
        keep(arguments.out, model, part)
        print(f"{part['title']}: {len(part['lanes'])} lanes, {part['prompts']} prompts.")


if __name__ == "__main__":
    main()
