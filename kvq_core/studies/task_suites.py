"""Prompts made from a seed, and verifiers of answers: what ``tasks`` holds, imported when it is asked for."""

import importlib
import json
from functools import cache
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.presets import FOLDER
from kvq_core.studies.prompts import StudyPrompt

LEFT_OUT = FOLDER / "tasks" / "left_out.json"  # by model and suite, why; benchmarks/tasks.py measures and writes it


def suite(name: str, **options: Any) -> tuple[StudyPrompt, ...]:
    """The prompts of a suite. Raises SpecError for a suite or an option that is not there."""
    tasks = _tasks()
    if name not in getattr(tasks, "SUITES", {}):
        there = ", ".join(getattr(tasks, "SUITES", {})) or "none are in this version"
        raise SpecError(f"Unknown suite {excerpt(name)}. Available: {there}.")
    prompts: tuple[StudyPrompt, ...] = tasks.suite(name, **options)
    return prompts


def words_of(name: str, **options: Any) -> tuple[int, int]:
    """Words of a suite's longest prompt, and of all of them, at least; none is made. Raises SpecError."""
    found: tuple[int, int] = _tasks().words_of(name, **options)
    return found


def left_out(model: str, name: str, options: dict[str, Any]) -> str | None:
    """Why a suite says nothing of a model's caches: in full precision it does not get half of the answers right. None
    where it does, where that was not measured, and with other options than the suite's own."""
    reason = None if options else _left_out().get(model, {}).get(name)
    return reason and f"{name} is left out for {model}: {reason}. Give options that make it easier, or another model."


@cache
def _left_out() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    return found


def new_tokens(name: str) -> int | None:
    """Enough for a right answer; None of a suite that is not there."""
    found = getattr(_tasks(), "SUITES", {}).get(name)
    return None if found is None else int(found.new_tokens)


def check_answer(name: str, answer: Any) -> None:
    """Raises SpecError where nobody of that name judges answers, or not by such a one."""
    known = getattr(_tasks(), "VERIFIERS", {})
    if name not in known:
        there = ", ".join(known) or "none are in this version"
        raise SpecError(f"Unknown verifier {excerpt(name)}. Available: {there}.")
    known[name].check(name, answer)


def judge(verifier: str, answer: Any, text: str) -> bool:
    """Whether a text is a right answer."""
    return bool(_tasks().judge(verifier, answer, text))


def _tasks() -> Any:
    return importlib.import_module("kvq_core.studies.tasks")
