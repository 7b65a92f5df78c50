"""The door to prompts that are made from a seed and to those who judge answers, which live in ``tasks``."""

import importlib
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.studies.prompts import Prompt


def suite(name: str, **options: Any) -> tuple[Prompt, ...]:
    """The prompts of a suite. Raises SpecError for a suite or an option that is not there."""
    tasks = _tasks()
    if name not in getattr(tasks, "SUITES", {}):
        there = ", ".join(getattr(tasks, "SUITES", {})) or "none are in this version"
        raise SpecError(f"Unknown suite {excerpt(name)}. Available: {there}.")
    prompts: tuple[Prompt, ...] = tasks.suite(name, **options)
    return prompts


def check_verifier(name: str) -> None:
    """Raises SpecError where nobody of that name judges answers."""
    known = getattr(_tasks(), "VERIFIERS", {})
    if name not in known:
        there = ", ".join(known) or "none are in this version"
        raise SpecError(f"Unknown verifier {excerpt(name)}. Available: {there}.")


def judge(verifier: str, answer: Any, text: str) -> bool:
    """Whether a text is a right answer."""
    return bool(_tasks().judge(verifier, answer, text))


def _tasks() -> Any:
    return importlib.import_module("kvq_core.studies.tasks")
