"""``python -m kvq_core store``: what the store holds, and removing what its limits say."""

import argparse
from dataclasses import asdict

from kvq_core.cli.output import as_json

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
