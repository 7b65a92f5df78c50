"""What a request is refused for before anything is asked of it."""

from typing import Any

from kvq_core.errors import KvqError, excerpt

_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


def demand(kind: type, **given: Any) -> None:
    """Gradio hands on whatever a client sends. Raises KvqError for an argument of another type."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise KvqError(f"{name} = {excerpt(value)} is not allowed: it must be {_KINDS[kind]}.")
