"""``python -m kvq_core``: comparisons without the page.

Results go to stdout, progress and errors to stderr. Whatever a person can get wrong ends in exit status 2 and one line.
Heavy modules are imported by the command that needs them, so that ``--help`` answers at once.
"""

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.cli import added as added_cli
from kvq_core.cli import advise as advise_cli
from kvq_core.cli import check as check_cli
from kvq_core.cli import claims as claims_cli
from kvq_core.cli import codebooks as codebooks_cli
from kvq_core.cli import embed as embed_cli
from kvq_core.cli import engine as engine_cli
from kvq_core.cli import files as files_cli
from kvq_core.cli import inspect as inspect_cli
from kvq_core.cli import layers as layers_cli
from kvq_core.cli import measure as measure_cli
from kvq_core.cli import mend as mend_cli
from kvq_core.cli import own as own_cli
from kvq_core.cli import predict as predict_cli
from kvq_core.cli import store as store_cli
from kvq_core.cli import study as study_cli
from kvq_core.cli import table as table_cli
from kvq_core.cli import verify as verify_cli
from kvq_core.cli.bar import Bar
from kvq_core.cli.comparison import add_comparison, comparison, losses
from kvq_core.cli.output import as_json
from kvq_core.cli.parser import Parser, program
from kvq_core.errors import KvqError, StoreError
from kvq_core.machine import interrupt

if TYPE_CHECKING:
    from kvq_core.record.arrays import Arrays
    from kvq_core.record.events import Event, Finished
    from kvq_core.record.fields import Record
    from kvq_core.spec import ComparisonSpec

EXAMPLES = {
    "": "python -m kvq_core compare --preset first-look\n  python -m kvq_core methods --json",
    "methods": "python -m kvq_core methods\n  python -m kvq_core methods --method-file my.py --json",
    "check-method": check_cli.EXAMPLES,
    "presets": "python -m kvq_core presets\n  python -m kvq_core presets --json",
    "compare": (
        "python -m kvq_core compare --preset first-look\n"
        "  python -m kvq_core compare --spec my.toml --out results/my-run\n"
        "  python -m kvq_core compare --spec my.json --json > record.json"
    ),
    "add": added_cli.EXAMPLES,
    "why": added_cli.WHY_EXAMPLES,
    "capture": added_cli.CAPTURE_EXAMPLES,
    "embed": embed_cli.EXAMPLES,
    "export": files_cli.EXAMPLES,
    "open": files_cli.OPEN_EXAMPLES,
    "show": store_cli.SHOW_EXAMPLES,
    "codebooks": codebooks_cli.EXAMPLES,
    "claims": claims_cli.EXAMPLES,
    "store": store_cli.EXAMPLES,
    "measure": measure_cli.EXAMPLES,
    "inspect": inspect_cli.EXAMPLES,
    "layers": layers_cli.EXAMPLES,
    "predict": predict_cli.EXAMPLES,
    "advise": advise_cli.EXAMPLES,
    "engine": engine_cli.EXAMPLES,
    "mend": mend_cli.EXAMPLES,
    "study": study_cli.EXAMPLES,
    "table": table_cli.EXAMPLES,
    "verify": verify_cli.EXAMPLES,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 where a check fails, 2 for anything a person can put right, 130
    when interrupted."""
    try:
        interrupt.end_quietly()
        arguments = _parser().parse_args(argv)
        if not arguments.at_once(arguments):
            importlib.import_module("kvq_core.pipeline.compare")  # with it all the libraries, which take seconds
            own_cli.load_files(arguments)
        interrupt.raise_again()
        status = arguments.command(arguments)
        sys.stdout.flush()
    except KvqError as error:
        line = "".join(c if c.isprintable() else "?" for c in str(error))  # what was given must not steer the terminal
        print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(stop.args[0] if stop.args else "Interrupted; nothing was written.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status or 0


def _parser() -> Parser:
    parser = Parser(prog=program(), description="Compare KV-cache quantization methods.", **_options(""))
    parser.set_defaults(at_once=lambda arguments: False)  # a command that can do without libraries says otherwise
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, summary: str, command: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary, **_options(name))
        made.add_argument("--json", action="store_true", help="print JSON")
        made.set_defaults(command=command)
        return made

    own_cli.add_method_files(add("methods", "List the quantization methods and their knobs.", _methods))
    check_cli.add_arguments(
        add("check-method", "Check that a method keeps what a method promises.", check_cli.check_command)
    )
    add("presets", "List the ready experiments.", _presets)
    compare = add("compare", "Run a comparison, store it and print the result.", _compare)
    add_comparison(compare, "a ready experiment; see the command presets")
    own_cli.add_method_files(compare)
    compare.add_argument("--out", metavar="DIR", type=Path, help="also write the run's files into this folder")
    added_cli.add_lane_arguments(add("add", "Add a lane to a stored run, which is not computed again.", _add))
    summary = "Measure what a lane's damage comes from: parts of its cache kept in fp16, one at a time."
    added_cli.add_arguments(add("why", summary, added_cli.why_command), _finished)
    summary = "Look at one lane of a stored run in every layer and head."
    added_cli.add_arguments(add("capture", summary, added_cli.capture_command), _finished)
    summary = "Write one figure of a stored run as a page that needs no server."
    embed_cli.add_arguments(commands.add_parser("embed", help=summary, description=summary, **_options("embed")))
    summary = "Write a stored run as one page that needs no server, with the run inside."
    files_cli.add_export(commands.add_parser("export", help=summary, description=summary, **_options("export")))
    files_cli.add_open(add("open", "Keep the run that such a page carries.", files_cli.open_page))
    store_cli.add_show(add("show", "Print a stored run; nothing is computed.", _show))
    summary = "List, train and delete the codebooks some methods need."
    codebooks_cli.add_commands(
        commands.add_parser("codebooks", help=summary, description=summary, **_options("codebooks")), _quiet
    )
    store_cli.add_arguments(add("store", "Tell what the store holds, or remove what its limits say.", store_cli.store))
    claims_cli.add_arguments(add("claims", "Measure the papers' claims on a model.", claims_cli.claims))
    summary = "Look at a model before any run: its cache, what formats cost, which layers are at risk."
    inspect = add("inspect", summary, inspect_cli.inspect)
    inspect_cli.add_arguments(inspect, _quiet)
    own_cli.add_method_files(inspect)
    summary = "Run lanes one at a time with packed caches: time and memory."
    measure = add("measure", summary, measure_cli.measure_lanes)
    measure_cli.add_arguments(measure, _quiet)
    own_cli.add_method_files(measure)
    summary = "Measure what each layer costs alone, and find the policy for a budget of bits."
    layers_cli.add_arguments(add("layers", summary, layers_cli.layers), _quiet)
    predict_cli.add_arguments(add("predict", "Whether captures foretell layers' costs.", predict_cli.predict), _quiet)
    summary = "Which lane to deploy for a memory, a context and a tolerance, how sure that is, and what it rests on."
    advise_cli.add_arguments(add("advise", summary, advise_cli.advise_command), _quiet)
    summary = "Run a GGUF file in the real llama.cpp under its cache types, against its own F32 cache."
    engine_cli.add_arguments(add("engine", summary, engine_cli.engine), _quiet)
    summary = "Change a few small tensors of a model's file so that a quantized cache keeps its answers."
    mend_cli.add_arguments(add("mend", summary, mend_cli.mend_command), _quiet)
    summary = "Run many prompts through the same lanes, with intervals over prompts."
    study = add("study", summary, study_cli.study_command)
    study_cli.add_arguments(study, _quiet)
    own_cli.add_method_files(study)
    summary = "Compute and draw the reference table, or check one that was submitted."
    table_cli.add_arguments(add("table", summary, table_cli.table_command), _quiet)
    verify_cli.add_arguments(add("verify", verify_cli.SUMMARY, verify_cli.verify))
    return parser


def _options(name: str) -> dict[str, Any]:
    layout = argparse.RawDescriptionHelpFormatter
    return {"epilog": f"examples:\n  {EXAMPLES[name]}", "formatter_class": layout, "allow_abbrev": False}


def _methods(arguments: argparse.Namespace) -> None:
    from kvq_core.cli.tables import list_methods
    from kvq_core.methods import failures
    from kvq_core.methods.describe import describe_methods

    for line in failures().values():
        print(f"warning: {line}", file=sys.stderr)
    print(as_json(describe_methods()) if arguments.json else list_methods())


def _presets(arguments: argparse.Namespace) -> None:
    from kvq_core.cli.tables import list_presets
    from kvq_core.presets import presets

    found = list(presets().values())
    print(as_json([p.model_dump(mode="json") for p in found]) if arguments.json else list_presets(found))


def _compare(arguments: argparse.Namespace) -> None:
    from kvq_core.record.store import check_folder, write_run

    spec = comparison(arguments)
    within = losses(arguments)  # now: the file may be another one when the run is over
    if arguments.out:
        check_folder(arguments.out)
    finished = _run(spec)
    unkept = [finished.unkept] if finished.unkept else []
    if arguments.out:
        try:
            write_run(arguments.out, finished.record, finished.arrays)
        except StoreError as error:  # what was computed is printed all the same
            unkept.append(str(error) if finished.unkept else f"{error} The run is stored as {finished.record.id}.")
    _print_record(finished.record, finished.arrays, arguments.json, within)
    if unkept:
        raise StoreError(" ".join(unkept))


def _add(arguments: argparse.Namespace) -> None:
    finished = _finished(added_cli.added(arguments))
    _print_record(finished.record, finished.arrays, arguments.json)
    if finished.unkept:
        raise StoreError(finished.unkept)


def _show(arguments: argparse.Namespace) -> None:
    _print_record(*store_cli.found(arguments.run, arguments.json), arguments.json)


def _run(spec: "ComparisonSpec") -> "Finished":
    """The finished run, after a word where memory may not be enough."""
    _quiet()
    from kvq_core.pipeline.compare import compare
    from kvq_core.pipeline.estimate import memory_warning
    from kvq_core.record.store import open_store
    from kvq_core.spec.chats import passed_line

    for said in filter(None, (passed_line(spec.passed), memory_warning(spec))):
        print(f"warning: {said}", file=sys.stderr)
    return _finished(compare(spec, store=open_store()))


def _finished(events: "Generator[Event]") -> "Finished":
    """How a run ends, with a progress bar where a person watches stderr."""
    _quiet()
    from kvq_core.record.events import Finished, progress

    with redirect_stdout(sys.stderr), closing(events), Bar() as bar:
        for event in events:
            if isinstance(event, Finished):
                return event
            bar(progress(event))
    raise AssertionError("a comparison ends with its record")


def _quiet() -> None:
    """Libraries' bars and advice would mix with ours; what they raise still arrives. For the whole process, ours."""
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _print_record(record: "Record", arrays: "Arrays", as_json: bool, within: tuple[float, ...] = ()) -> None:
    """``within``: the losses whose fewest bits are told; the usual ones where there are none."""
    from kvq_core.analysis.within import LOSSES
    from kvq_core.cli.tables import describe_record
    from kvq_core.record.files import record_json

    print(record_json(record) if as_json else describe_record(record, arrays, within or LOSSES))
