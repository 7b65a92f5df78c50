"""``python -m kvq_core study``: many prompts through the same lanes, with intervals over prompts."""

import argparse
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvq_core.cli.bar import Bar
from kvq_core.cli.output import as_json
from kvq_core.errors import PATH, SpecError, abbreviate, excerpt

if TYPE_CHECKING:
    from kvq_core.studies.cells import CellPlan
    from kvq_core.studies.executors import Executor
    from kvq_core.studies.spec import StudySpec

EXAMPLES = (
    "python -m kvq_core study --spec my.toml --workers 2\n"
    "  python -m kvq_core study --spec my.toml --shard 1/4\n"
    "  python -m kvq_core study --spec my.toml --json --out rows.parquet"
)
PAGE = "http://127.0.0.1:7860"
WORKERS = "processes that compute; default: one a core, as many as memory allows"
LEFT_OUT = 10  # prompts and lines that are named before a study is run


def add_arguments(parser: argparse.ArgumentParser, quiet: Callable[[], None]) -> None:
    """What the command ``study`` takes; ``quiet`` silences libraries."""
    said = "a study as .toml or .json, or the text of its link"
    parser.add_argument("--spec", metavar="FILE", type=Path, required=True, help=said)
    parser.add_argument("--shard", metavar="I/N", type=_shard, help="compute the I-th of N parts alone, from 1/N on")
    parser.add_argument("--workers", metavar="N", type=count, default=1, help="processes that compute; default 1")
    parser.add_argument("--ray", metavar="auto|ADDRESS", type=_address, help="compute on the actors of a Ray cluster")
    parser.add_argument("--dry-run", action="store_true", help="tell cells, time and memory, and compute nothing")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write the rows into this Parquet file")
    parser.set_defaults(quiet=quiet)


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise SpecError(f"--shard {excerpt(text)} is not allowed; give I/N, such as 1/4 for the first of four parts.")
    return int(found[1]), int(found[2])


def _address(text: str) -> str:
    if not text.strip():
        raise SpecError(f"--ray {excerpt(text)} is not allowed; give auto, or the address of a cluster.")
    return text


def count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise SpecError(f"--workers {excerpt(text)} is not allowed; give a whole number from 1 to 256.")
    return int(text)


def study_command(arguments: argparse.Namespace) -> int:
    """Run a study, or what is left of it, and print what it found."""
    arguments.quiet()
    from kvq_core.cli.study_text import describe_study
    from kvq_core.studies.cells import plan
    from kvq_core.studies.estimate import estimate
    from kvq_core.studies.study import run_plan

    if arguments.workers > 1 and arguments.ray:
        raise SpecError("--workers and --ray are both given; workers are of this machine, Ray has its own.")
    spec = _spec(str(arguments.spec))
    check_out(arguments.out, ".parquet")
    with redirect_stdout(sys.stderr), Bar(timed=True) as progress:
        planned = plan(spec, progress)
        if not arguments.dry_run:
            progress.went_on = lambda: went_on(planned)
            asked = {"shard": arguments.shard, "workers": arguments.workers, "executor": _executor(arguments)}
            result = run_plan(planned, progress=progress, **asked)
    if arguments.dry_run:
        told = estimate(planned, arguments.shard, arguments.workers)
        out = [*planned.broken, *(f"{each.prompt}: {each.why}" for each in planned.left_out)]
        left = [f"left out: {each}" for each in out]
        link = _link(spec)
        said = planned.passed_over
        lines = [told.sentence, *([said] if said else []), *left[:LEFT_OUT], *([f"link: {link}"] if link else [])]
        print(as_json({**told.as_dict(), "link": link, "passed_over": said}) if arguments.json else "\n".join(lines))
        return 0
    print(as_json(result.summary()) if arguments.json else describe_study(result))
    if arguments.out is not None:
        write_out(arguments.out, result.write_parquet)
    return int(bool(result.failed))


def _spec(given: str) -> "StudySpec":
    from kvq_core.studies.spec import is_link, read_study, study_of_link

    return study_of_link(given) if is_link(given) else read_study(Path(given))


def _link(spec: "StudySpec") -> str | None:
    """A study as text that another machine reads, its prompts inside; None where that is too long."""
    from kvq_core.studies.spec import study_link

    with suppress(SpecError):
        return study_link(spec)
    return None


def check_out(file: Path | None, suffix: str) -> None:
    """Raises SpecError for a file that cannot be one of that suffix, before anything is computed for it."""
    if file is not None and (file.is_dir() or file.suffix != suffix):
        raise SpecError(
            f"{abbreviate(str(file), PATH)} is not a place for the result; give a file that ends in {suffix}."
        )


def write_out(file: Path, write: Callable[[Path], object]) -> None:
    """Raises SpecError where it cannot be written."""
    try:
        write(file)
    except OSError as error:
        raise SpecError(f"Cannot write {abbreviate(str(file), PATH)}: {error.strerror or error}.") from None


def _executor(arguments: argparse.Namespace) -> "Executor | None":
    if not arguments.ray:
        return None
    from kvq_core.studies.ray_core import RayActors

    return RayActors(arguments.ray)


def went_on(planned: "CellPlan") -> str:
    """What is told on Ctrl-C."""
    from kvq_core.record.beside import present_in
    from kvq_core.record.store import open_store

    done = len(present_in(open_store(), (cell.id for cell in planned.cells)))
    return (
        f"Interrupted; {done} of {len(planned.cells)} cells are in the store, and the same command goes on from them."
    )
