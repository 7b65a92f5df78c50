"""What one instance lets its visitors ask for: read from the environment when it is asked for, and kept nowhere.

A public instance has limits by default, a private one only what keeps it standing. The command line and Python are not
limited: who starts them owns the machine.
"""

import os
from dataclasses import dataclass, fields
from typing import Any

from kvq_core.errors import KvqError, excerpt
from kvq_core.settings import settings


@dataclass(frozen=True)
class Limits:
    """One reading of the environment; None: no limit. ``VARIABLES`` names each one's variable and defaults."""

    line: int  # runs at work and waiting, of all visitors together
    waiting: int | None  # the same of one visitor
    per_hour: int | None  # runs a visitor starts within an hour
    work: int | None  # (prompt + new tokens) x (lanes + the reference)
    messages: int | None  # of a conversation
    tools: int | None  # characters of a conversation's tools as JSON
    lanes: int | None  # of a run
    characters: int  # of prompt, system message and continuation together, counted before anything is tokenized
    seconds: int | None  # after which a run is stopped
    cells: int | None  # of a study
    prompts: int | None  # of a study
    study_bytes: int  # of a study's prompts as they are sent, counted before anything is read


@dataclass(frozen=True)
class Variable:
    """An environment variable, with its defaults on private and on public instances."""

    name: str
    private: int | None
    public: int | None
    meaning: str


VARIABLES = {
    "line": Variable("KVQ_MAX_LINE", 64, 64, "runs at work and waiting, all visitors together"),
    "waiting": Variable("KVQ_MAX_WAITING", None, 3, "runs at work and waiting of one visitor"),
    "per_hour": Variable("KVQ_RUNS_PER_HOUR", None, 60, "runs a visitor starts within an hour"),
    "work": Variable("KVQ_MAX_WORK", None, 32_768, "(prompt tokens + new tokens) x (lanes + 1) of a run"),
    "messages": Variable("KVQ_MAX_MESSAGES", None, 64, "messages of a conversation"),
    "tools": Variable("KVQ_MAX_TOOLS", None, 32_768, "characters of a conversation's tools, as JSON"),
    "lanes": Variable("KVQ_MAX_LANES", None, 16, "lanes of a run"),
    "characters": Variable(
        "KVQ_MAX_CHARACTERS", 2_000_000, 200_000, "characters of prompt, system message and continuation together"
    ),
    "seconds": Variable("KVQ_TIMEOUT", None, 600, "seconds after which a run is stopped"),
    "cells": Variable("KVQ_MAX_CELLS", None, 60, "cells of a study: models x prompts"),
    "prompts": Variable("KVQ_MAX_PROMPTS", None, 60, "prompts of a study"),
    "study_bytes": Variable("KVQ_MAX_STUDY_BYTES", 8_000_000, 1_000_000, "bytes of a study's prompts"),
}
_NEEDED = {"line", "characters", "study_bytes"}  # without these a server does not stay up: 0 is not a value


def limits() -> Limits:
    """The limits of this moment.

    Raises KvqError where a variable cannot be understood.
    """
    public = settings().public
    found: dict[str, Any] = {}
    for field in fields(Limits):
        variable = VARIABLES[field.name]
        default = variable.public if public else variable.private
        found[field.name] = _read(variable.name, default, field.name not in _NEEDED)
    return Limits(**found)


def has_more(data: Any, most: int) -> bool:
    """Whether plain data holds more values than that; no more are looked at."""
    left, count = [data], 1
    while left and count <= most:
        value = left.pop()
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(held)
        left += held if count <= most else ()
    return count > most


def _read(name: str, default: int | None, can_be_off: bool) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if number > 0 or (number == 0 and can_be_off):
        return number or None
    allowed = "a whole number; 0: no limit" if can_be_off else "a whole number from 1"
    raise KvqError(f"{name} = {excerpt(text)} is not a limit; give {allowed}.")
