"""Lanes that were tried on a run: what each came to beside the lane that it changes, and the way back."""

from collections.abc import Sequence
from typing import Any

from kvq_core.analysis.acts import effect
from kvq_core.errors import SpecError, StoreError
from kvq_core.settings import settings
from ui.html.acts import TriedLane
from ui.service.access import MOST_ADDED
from ui.service.services import Services
from ui.views.tabs import OnPage, labels


def came(services: Services, shown: dict[str, Any]) -> list[TriedLane]:
    """What was added to the run shown, as far as this page may take it back: on a public instance what its browser
    added. Raises StoreError."""
    whole, arrays = services.records.whole(shown)
    labels, found = [lane.label for lane in whole.lanes], []
    for at, label in enumerate(labels):
        run = (whole.added(at) or ("",))[0]
        if run and (not settings().public or run in shown.get("own", ())):
            of = _changes(label, labels[:at])
            found.append(TriedLane(run, label, None if of is None else effect(whole, arrays, of, at)))
    return found


def _changes(label: str, labels: Sequence[str]) -> int | None:
    """Which lane one changes, by what it is called: acts.Act's are named after it."""
    short = label.rpartition(" + ")[0]
    found = [at for at, other in enumerate(labels) if short and other.startswith(short)]
    return min(found, key=lambda at: len(labels[at]), default=None)


def drawn_anew(services: Services, shown: dict[str, Any], on_page: OnPage) -> dict[str, Any] | None:
    """What a page is to show where a lane joined its run, or left it, on another page since it was drawn: else views
    would name other lanes than its legend. None where it is as it was, or is being drawn."""
    if not shown.get("run") or not on_page.lanes or (on_page.shown or shown) != shown:
        return None
    try:
        now = labels(services.records.drawn(shown)[0])
    except StoreError:  # said where the run would be
        return None
    if now == on_page.lanes:
        return None
    on_page.lanes = now
    left = {name: value for name, value in shown.items() if name not in ("home", "lanes")}
    return {**left, "stays": True, "drawn": shown.get("drawn", 0) + 1}  # else nothing would have changed


def undone(services: Services, shown: dict[str, Any], run: Any) -> dict[str, Any]:
    """What is shown without a run that was added, which is removed unless it was there before this page asked for it.
    It may be gone already, taken back on another page. Raises KvqError."""
    known = shown.get("run") and run in [tried.run for tried in came(services, shown)]
    if not known and not _is_gone(services, shown, run):
        raise SpecError("That lane is not one of this run that can be taken back here.")
    if known and run not in shown.get("reused", ()):
        services.records.take_back(run, shown["run"])
    shown = {name: value for name, value in shown.items() if name != "lanes"}
    shown["own"] = [own for own in shown.get("own", ()) if own != run]
    return {**shown, "without": [*shown.get("without", ()), run]}


def _is_gone(services: Services, shown: dict[str, Any], run: Any) -> bool:
    """Whether a run that a page draws may have been taken back elsewhere: it is no run any more."""
    few = len(shown.get("without", ())) < MOST_ADDED
    return bool(shown.get("run")) and isinstance(run, str) and few and not services.store.exists(run)
