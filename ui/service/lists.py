"""The lists that a browser keeps, of its own runs and studies. Each of its tabs holds the whole of a list."""

from collections.abc import Callable, Mapping
from typing import Any

Entry = dict[str, str]


def tell_tabs(name: str, most: int) -> str:
    """JavaScript that tells the other tabs what changed in the list of a name, of at most so many; see js/lists.js."""
    return f"(entries) => window.kvq?.lists.{name}.changed(entries, {most})"


def told_by_tab(
    entries: list[Entry], told: Mapping[str, Any], read: Callable[[Any], list[Entry]], most: int
) -> list[Entry]:
    """A list with what js/lists.js tells of it: the ``whole`` of it where this tab had lost some, else what another tab
    did: entries that it ``put`` in their places, new ones first, and ids that are ``gone``. ``read``: entries out of
    anybody's text.

    Raises KeyError and TypeError for what it cannot have told.
    """
    if "whole" in told:
        return read(told["whole"])[:most] or entries
    put, gone = read(told["put"]), set(told.get("gone", ()))
    new = {entry["id"]: entry for entry in put}
    there = {entry["id"] for entry in entries}
    first = [entry for entry in put if entry["id"] not in there]
    return [*first, *(new.get(entry["id"], entry) for entry in entries if entry["id"] not in gone)][:most]
