"""``python -m kvq_core store`` and ``show``: what the store holds, removing what its limits say, and one run of it."""

import argparse
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kvq_core.cli.output import as_json

if TYPE_CHECKING:
    from kvq_core.record.arrays import Arrays
    from kvq_core.record.fields import Record

SHOW_EXAMPLES = "python -m kvq_core show 0123456789abcdef\n  python -m kvq_core show results/my-run --json"
EXAMPLES = "python -m kvq_core store --json\n  KVQ_STORE_LIMIT=2GB KVQ_STORE_DAYS=90 python -m kvq_core store prune"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command ``store`` takes."""
    parser.add_argument(
        "action", nargs="?", choices=["prune"], help="remove what the limits say; without it, only look"
    )


def store(arguments: argparse.Namespace) -> None:
    """Print the store's size, and what was removed."""
    from kvq_core.record.store import open_store

    place = open_store()
    removed = list(place.prune()) if arguments.action else []
    usage = place.usage()
    if arguments.json:
        found = {**asdict(usage), "limits": asdict(place.limits), "removed": removed}
        print(as_json(found))
        return
    for run in removed:
        print(f"removed {run}")
    limit = "no limit" if place.limits.size is None else f"of at most {place.limits.size / 1e6:,.1f} MB"
    age = "" if usage.oldest is None else f"; the oldest is of {usage.oldest:%Y-%m-%d}"
    print(f"{usage.runs} runs, {usage.size / 1e6:,.1f} MB ({limit}){age}")


def add_show(parser: argparse.ArgumentParser) -> None:
    """What the command ``show`` takes."""
    parser.add_argument(
        "run", metavar="RUN_ID|DIR", help="id of a stored run, of one that ships, or a folder written by --out"
    )


def found(given: str, alone: bool) -> "tuple[Record, Arrays]":
    """The run of an id, or in a folder that ``--out`` wrote. Of an id with the lanes that were added to it, unless
    it is asked for ``alone``, as programs do. Raises StoreError."""
    from kvq_core.record.beside import with_lanes
    from kvq_core.record.shipped import find_run
    from kvq_core.record.store import open_store, read_run

    there = os.path.isdir(given)  # noqa: PTH112 (Path.is_dir raises where a name is too long)
    if not re.fullmatch("[0-9a-f]{16}", given) and ("/" in given or there):
        return read_run(Path(given))
    store = open_store()
    return find_run(given, store) if alone else with_lanes(store, given)
