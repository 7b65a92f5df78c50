"""The Berkeley Function Calling Leaderboard: questions with tools, and the calls that are right (Patil et al., ICML
2025). Its package pins an old NumPy, so it is installed by ``pip install --no-deps bfcl-eval`` and never imported: the
JSON files in it are read by path.

Deviations from its own score: a call is judged by ``verifiers.bfcl`` alone, which does not check types beyond values.
"""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from kvq_core.errors import PATH, SpecError, abbreviate, excerpt
from kvq_core.spec import Message
from kvq_core.studies.prompts import StudyPrompt

CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)
# its names of types, where JSON schema has others
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


def bfcl(category: str, n: int | None = None, folder: str | Path | None = None) -> tuple[StudyPrompt, ...]:
    """The first ``n`` questions of a category, all without it. ``folder`` holds ``BFCL_v4_<category>.json`` and
    ``possible_answer``; None: the installed package's.

    Raises SpecError for a category of several turns, of another language or without right calls, where the files are
    not there, and for a line that is not BFCL's.
    """
    if n is not None and n < 1:
        raise SpecError(f"BFCL: n = {excerpt(n)} is not allowed; give a whole number from 1, or leave it out for all.")
    if category not in CATEGORIES:
        raise SpecError(f"BFCL's category {excerpt(category)} is not imported; give one of {', '.join(CATEGORIES)}.")
    place = Path(folder) if folder is not None else _installed()
    questions, answers = (_file(at, category) for at in (place, place / "possible_answer"))
    right = {told["id"]: told["ground_truth"] for told in _lines(answers, ("id", "ground_truth"))}
    asked = _lines(questions, ("id", "question", "function"))
    return tuple(_prompt(each, right, questions, category) for each in asked[:n])


def _installed() -> Path:
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or found.origin is None:
        raise SpecError(
            "BFCL's files are not installed; pip install --no-deps bfcl-eval, or give the folder with them."
        )
    return Path(found.origin).parent / "data"


def _file(folder: Path, category: str) -> Path:
    named = re.compile(rf"BFCL_v\d+_{category}\.json")  # of which one's name ends as another's does
    held = sorted((file for file in folder.glob("*.json") if named.fullmatch(file.name)), key=lambda file: file.name)
    if not held:
        raise SpecError(
            f"{abbreviate(str(folder), PATH)} holds no BFCL_v..._{category}.json; give the folder with BFCL's data."
        )
    return held[-1]


def _lines(file: Path, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    found = []
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # splitlines also ends them at signs of texts
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise SpecError(f"Cannot read {abbreviate(str(file), PATH)}: {said}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or not all(name in told for name in fields):
            raise SpecError(f"{file.name}, line {number}: it must be a JSON object with {', '.join(fields)}.")
        found.append(told)
    return found


def _prompt(told: dict[str, Any], right: dict[str, Any], file: Path, category: str) -> StudyPrompt:
    try:
        [turn] = told["question"]
        return StudyPrompt(
            id=f"bfcl-{told['id']}",
            group=category,
            messages=tuple(Message(role=each["role"], content=each["content"]) for each in turn),
            tools=tuple({"type": "function", "function": _schema(tool)} for tool in told["function"]),
            answer=right[told["id"]],
            verifier="bfcl",
            facts={"source": file.stem, "tools": len(told["function"])},
        )
    except (KeyError, TypeError, ValueError, SpecError):
        raise SpecError(
            f"{file.name}: {excerpt(told['id'])} is not a question of one turn with its right calls; the file is of "
            "another version than those that are read."
        ) from None


def _schema(value: Any, of_type: bool = False) -> Any:
    """A description of a function with JSON schema's names of types."""
    if isinstance(value, dict):
        return {key: _schema(each, key == "type" and isinstance(each, str)) for key, each in value.items()}
    if isinstance(value, list):
        return [_schema(each) for each in value]
    return TYPES.get(value, value) if of_type else value
