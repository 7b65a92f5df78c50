"""Checks of the API's arguments: their types, and prompts that a client may not send."""

from typing import Any

from kvq_core.errors import KvqError, SpecError, excerpt
from kvq_core.studies.sources import PromptSource
from ui.service.admission import check_prompts, check_study_bytes

_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


def demand(kind: type, **given: Any) -> None:
    """Gradio hands on whatever a client sends. Raises KvqError for an argument of another type."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise KvqError(f"{name} = {excerpt(value)} is not allowed: it must be {_KINDS[kind]}.")


def demand_prompts(source: PromptSource) -> None:
    """Raises KvqError for prompts of a file, since the machine is the server's, and for more than a study may hold."""
    if source.file is not None:
        raise SpecError("prompts: the API takes no file; give texts or rows.")
    check_study_bytes(len(source.model_dump_json().encode()))
    check_prompts(source)
