"""``python -m kvq_core add``, ``why`` and ``capture``: lanes of a stored run that are computed again, or anew."""

import argparse
from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvq_core.cli.output import as_json, columns
from kvq_core.errors import SpecError, StoreError, excerpt

if TYPE_CHECKING:
    from kvq_core.analysis.why import Why
    from kvq_core.record.events import Event, Finished
    from kvq_core.spec import Lane

    Finish = Callable[[Generator[Event]], Finished]

EXAMPLES = (
    """python -m kvq_core add 0123456789abcdef '{"method": "kivi", "knobs": {"bits": 4}}'\n"""
    """  python -m kvq_core add 0123456789abcdef '{"rules": [{"method": "fp16", "layers": [0]}, {"method": "kivi"}]}'"""
)
CAPTURE_EXAMPLES = "python -m kvq_core capture 0123456789abcdef KIVI"
WHY_EXAMPLES = "python -m kvq_core why 0123456789abcdef KIVI\n  python -m kvq_core why 0123456789abcdef KIVI --json"


def add_lane_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command ``add`` takes."""
    parser.add_argument("run", metavar="RUN_ID", help="id of a stored run, or of one that ships")
    parser.add_argument("lane", metavar="LANE", help="the lane as JSON, as in a comparison's lanes")


def add_arguments(parser: argparse.ArgumentParser, finish: "Finish") -> None:
    """What the commands ``why`` and ``capture`` take; ``finish`` shows how far a run is, and returns its end."""
    parser.add_argument("run", metavar="RUN_ID", help="id of a stored run, or of one that ships")
    parser.add_argument("lane", metavar="LABEL", help="label of one of its lanes")
    parser.set_defaults(finish=finish)


def added(arguments: argparse.Namespace) -> "Generator[Event]":
    """The run of the lane that was asked for. Raises SpecError where it is none."""
    from kvq_core.pipeline.added import adding, parent_of
    from kvq_core.record.store import open_store

    lane, store = _lane(arguments.lane), open_store()
    return adding(parent_of(arguments.run, store), [lane], store)


def _lane(text: str) -> "Lane":
    import json

    from kvq_core.spec import parse_lane

    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise SpecError(f"LANE = {excerpt(text)} is no JSON; see: python -m kvq_core add --help") from None
    return parse_lane(told, "LANE")


def why_command(arguments: argparse.Namespace) -> None:
    """Measure what a lane's damage comes from, and print it."""
    from kvq_core.pipeline.added import index_of, parent_of
    from kvq_core.pipeline.why import asking_why, why_of
    from kvq_core.record.store import open_store

    store = open_store()
    parent = parent_of(arguments.run, store)
    at = index_of(parent, arguments.lane)
    finished = arguments.finish(asking_why(parent, at, store))
    found = why_of(parent, at, finished)
    if arguments.json:
        left = {kind: found.unexplained(kind) for kind in ("tensors", "layers")}
        ranked = [cause.label for cause in found.ranked]
        print(as_json({"run": finished.record.id, **asdict(found), "unexplained": left, "ranked": ranked}))
    else:
        print("\n".join(_lines(found)))


def capture_command(arguments: argparse.Namespace) -> None:
    """Look at a lane in every layer and head, and say where that is kept."""
    from kvq_core.pipeline.added import capturing, index_of, parent_of
    from kvq_core.record.store import open_store

    store = open_store()
    parent = parent_of(arguments.run, store)
    at = index_of(parent, arguments.lane)
    finished = arguments.finish(capturing(parent, at, store))
    if finished.unkept:
        raise StoreError(finished.unkept)
    record, recorded = finished.record, parent.lanes[at].metrics
    klds = [None if metrics is None else metrics.kld_mean for metrics in (record.lanes[0].metrics, recorded)]
    told = {"run": record.id, "kld": klds[0], "recorded": klds[1], "layers": record.capture.layers}
    if arguments.json:
        print(as_json(told))
    else:
        again, before = ("-" if kld is None else f"{kld:.4g}" for kld in klds)
        print(
            f"run {record.id}: {arguments.lane} in {len(record.capture.layers)} layers and {len(record.capture.heads)} "
            f"heads; mean KLD {again} nats in this batch, {before} as recorded"
        )


def _lines(found: "Why") -> list[str]:
    from kvq_core.analysis.why import OWN_WINDOWS

    head = f"{found.lane}: mean KLD {found.kld:.4g} nats in this batch, {found.recorded:.4g} as recorded"
    rows: list[tuple[str, ...]] = [("", "KLD", "of it", "±", "more KiB", "nats a KiB")]
    for cause in found.causes:
        each = "-" if cause.per_kib is None else f"{cause.per_kib:.2g}"
        own = f"{cause.gain:+.4f}", f"{2 * cause.se:.4f}", f"{cause.more_bytes / 1024:,.1f}", each
        rows.append((cause.label, f"{cause.kld:.4f}", *own))
    for kind in ("tensors", "layers"):
        if (left := found.unexplained(kind)) is not None:
            rows.append((f"not explained by {kind}", "", f"{left:+.4f}", "", "", ""))
    best = ", ".join(cause.label for cause in found.ranked) or "none gains more than twice its standard error"
    return [
        head,
        *columns(rows),
        *([OWN_WINDOWS] if found.own_windows else []),
        f"Most gained for a byte first: {best}.",
    ]
