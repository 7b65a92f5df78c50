"""``python -m kvq_core table``: the reference table computed, or what is left of it; a submitted one checked."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json
from kvq_core.cli.study import PAGE, WORKERS, check_out, count, went_on, write_out
from kvq_core.errors import SpecError
from kvq_core.machine.progress import Progress

if TYPE_CHECKING:
    from kvq_core.studies.cells import CellPlan
    from kvq_core.studies.result import StudyResult
    from kvq_core.studies.table import CheckedCell

EXAMPLES = (
    "python -m kvq_core table --quick\n"
    "  python -m kvq_core table --workers 2 --out table.md\n"
    "  python -m kvq_core table --stored --out table.md --picture table.svg\n"
    "  python -m kvq_core table --model owner/name --check their-store"
)


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    """What the command ``table`` takes; ``quiet`` silences libraries."""
    parser.add_argument("--quick", action="store_true", help="one prompt of each kind, every method once, 32 tokens")
    parser.add_argument("--model", metavar="M", help="a row for another model: an id as in a comparison")
    parser.add_argument("--workers", metavar="N", type=count, help=WORKERS)
    parser.add_argument("--stored", action="store_true", help="draw what the store holds, and compute nothing")
    parser.add_argument("--check", metavar="STORE", help="compute one cell in twenty of a submitted store again")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write the table into this Markdown file")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="also draw it into this SVG file")
    parser.add_argument("--page", metavar="URL", default=PAGE, help=f"where its links open runs; default {PAGE}")
    parser.set_defaults(quiet=quiet)


def table_command(arguments: argparse.Namespace) -> int:
    """Compute what is missing of the table and draw it, or check one."""
    arguments.quiet()
    from kvq_core.cli.table_text import runs, table_markdown
    from kvq_core.machine import files
    from kvq_core.studies.cells import plan
    from kvq_core.studies.table import table_spec

    if arguments.check and arguments.stored:
        raise SpecError("--check and --stored are both given; give one of them.")
    check_out(arguments.out, ".md")
    check_out(arguments.picture, ".svg")
    spec = table_spec(arguments.quick, arguments.model)
    with redirect_stdout(sys.stderr), Bar(timed=True) as progress:
        planned = plan(spec, progress)
        found = _checked(planned, arguments.check, progress) if arguments.check else []
        if not arguments.check:
            progress.went_on = lambda: went_on(planned)
            result = _result(planned, arguments, progress)
    if arguments.check:
        print("\n".join(_line(each) for each in found))
        return int(any(each.why is not None for each in found))
    drawn = table_markdown(result, arguments.page)
    print(as_json({**result.summary(), "runs": runs(result)}) if arguments.json else drawn)
    if arguments.out is not None:
        write_out(arguments.out, lambda file: files.write(file, drawn.encode()))
    if arguments.picture is not None:
        write_out(arguments.picture, lambda file: files.write(file, _picture(result).encode()))
    return int(bool(result.failed))


def _result(planned: "CellPlan", arguments: argparse.Namespace, progress: Bar) -> "StudyResult":
    from kvq_core.studies.estimate import workers_here
    from kvq_core.studies.study import run_plan, stored_study

    if arguments.stored:
        return stored_study(planned)
    return run_plan(planned, workers=arguments.workers or workers_here(planned), progress=progress)


def _picture(result: "StudyResult") -> str:
    from kvq_core.cli.table_picture import picture

    summary = result.summary()
    cells = summary["cells"]
    return picture(summary["lanes"], f"Mean KLD in nats with 95 % intervals, {cells['done']} of {cells['total']} cells")


def _checked(planned: "CellPlan", url: str, progress: Bar) -> "list[CheckedCell]":
    from kvq_core.record.store import open_store
    from kvq_core.studies.table import check_cells, sampled_cells

    found: list[CheckedCell] = []
    for each in check_cells(planned, open_store(url)):
        found.append(each)
        progress(Progress("Computing again", len(found), len(sampled_cells(planned))))
    return found


def _line(found: "CheckedCell") -> str:
    apart = "" if found.apart is None else f", at most {found.apart:.2g} nats apart"
    return f"{found.run} {found.prompt}: {found.why or 'agrees'}{apart}"
