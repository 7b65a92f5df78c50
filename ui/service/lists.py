"""The lists that a browser keeps, of its own runs and studies. Each of its tabs holds the whole of a list."""

from collections.abc import Collection

Entry = dict[str, str]


def tell_tabs(name: str) -> str:
    """JavaScript that tells the other tabs what changed in the list of a name; see js/lists.js."""
    return f"(entries) => window.kvq?.lists.{name}(entries)"


def together(entries: list[Entry], put: list[Entry], gone: Collection[str], most: int) -> list[Entry]:
    """A list with what another tab did: entries that it ``put`` in their places, new ones first, and ids that are
    ``gone``."""
    new = {entry["id"]: entry for entry in put}
    there = {entry["id"] for entry in entries}
    first = [entry for entry in put if entry["id"] not in there]
    return [*first, *(new.get(entry["id"], entry) for entry in entries if entry["id"] not in gone)][:most]
