"""``python -m kvq_core export`` and ``open``: a run as one page that needs no server, and back into the store."""

import argparse
import sys
from pathlib import Path

from kvq_core.cli.embed import draw
from kvq_core.cli.output import as_json
from kvq_core.errors import PATH, SpecError, abbreviate

EXAMPLES = (
    "python -m kvq_core export 0123456789abcdef > run.html\n  python -m kvq_core export 0123456789abcdef --out run.html"
)
OPEN_EXAMPLES = "python -m kvq_core open run.html"


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN_ID", help="id of a stored run, or of one that ships")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where it is written (standard output)")
    parser.set_defaults(command=export, at_once=lambda arguments: True)


def export(arguments: argparse.Namespace) -> int:
    """Hand over to the page's program, as ``embed`` does."""
    if arguments.out is None and sys.stdout.isatty():
        raise SpecError("The page is no text for a terminal. Add > run.html, or --out run.html.")
    return draw([arguments.run, *([] if arguments.out is None else ["--out", str(arguments.out)])])


def add_open(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a page that export wrote")


def open_page(arguments: argparse.Namespace) -> None:
    """Keep the run that a page carries, and print its id. Raises SpecError for a file that cannot be read, StoreError
    for one that carries no run or a damaged one."""
    from kvq_core.record.carried import carried, restore
    from kvq_core.record.files import ARRAYS, RECORD, parse_manifest
    from kvq_core.record.store import open_store

    place = abbreviate(str(arguments.file), PATH)
    try:
        data = arguments.file.read_bytes()
    except OSError as error:
        raise SpecError(f"Cannot read {place}: {error.strerror or error}.") from None
    found = carried(data, place)
    new, run = restore(found, open_store()), found.record.id
    if arguments.json:
        facts = parse_manifest(found.files["manifest.json"], place)
        print(as_json({"id": run, "new": new, "sha256": {RECORD: facts.record.sha256, ARRAYS: facts.arrays.sha256}}))
    else:
        print(f"run {run} {'is in the store now' if new else 'was in the store already'}: show {run}, or ?run={run}")
