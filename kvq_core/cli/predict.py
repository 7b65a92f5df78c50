"""``python -m kvq_core predict``: does what captures show of layers foretell what quantizing them costs?"""

import argparse
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from typing import TYPE_CHECKING, Any

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json, columns
from kvq_core.machine.progress import Progress

if TYPE_CHECKING:
    from kvq_core.studies.cells import CellPlan

EXAMPLES = (
    "python -m kvq_core predict --study 0123456789abcdef\n"
    "  python -m kvq_core predict --study 0123456789abcdef --model smollm2-135m-instruct-q4_1 --json"
)
HEADER = ("level", "predictor", "Spearman", "low", "high", "n", "")


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    parser.add_argument("--study", metavar="ID", required=True, help="prompts and lanes of this study, run or planned")
    parser.add_argument("--model", metavar="M", help="of a study with several models, which; the first otherwise")
    parser.set_defaults(quiet=quiet)


def predict(arguments: argparse.Namespace) -> None:
    """Look at every prompt that was not looked at before, and correlate."""
    arguments.quiet()
    from kvq_core.recommend.predict import cells_of, correlations, kept_prompt, look, model_of, work_sentence

    with redirect_stdout(sys.stderr), Bar(timed=True) as progress:
        cells = cells_of(_planned(arguments.study), arguments.model)
        progress(Progress("Loading the model"))
        model = model_of(cells)
        print(work_sentence(model, cells), file=sys.stderr, flush=True)
        progress.went_on = lambda: (
            f"Interrupted; {sum(kept_prompt(cell) is not None for cell in cells)} of {len(cells)} prompts are kept, "
            "and the same command goes on from there."
        )
        seen = []
        with closing(look(model, cells)) as looked:
            progress(Progress("Looking at prompts", 0, len(cells)))
            for each in looked:
                seen.append(each)
                progress(Progress("Looking at prompts", len(seen), len(cells)))
    found = correlations(seen)
    print(as_json(found) if arguments.json else _described(found))


def _planned(id: str) -> "CellPlan":
    from kvq_core.record.store import open_store
    from kvq_core.studies.example import packaged_ids, packaged_studies
    from kvq_core.studies.stored_plan import kept_plan

    return kept_plan(id, packaged_studies() if id in packaged_ids() else open_store())


def _described(rows: list[dict[str, Any]]) -> str:
    told = [HEADER]
    for row in rows:
        figures = ("-" if row[key] is None else f"{row[key]:+.2f}" for key in ("spearman", "low", "high"))
        told.append((row["level"], row["predictor"], *figures, str(row["n"]), row["why"] or ""))
    return "\n".join(columns(told))
