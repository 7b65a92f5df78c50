"""The parts of docs/tasks.md that are written from the suites, the verifiers and what models get right of the tasks."""

from typing import Any

from benchmarks.measured import figures, table
from kvq_core.studies.tasks import SUITES, VERIFIERS


def suites_part() -> str:
    rows = []
    for name, kind in SUITES.items():
        options = "<br>".join(
            f"`{option}` ({_shown(field.default)}): {field.description}" for option, field in kind.model_fields.items()
        )
        rows.append([f"`{name}`", kind.asks, options, str(kind.new_tokens), kind.source])
    return table("Suite | Asks for | Options (default) | `max_new_tokens` | From", *rows)


def _shown(value: Any) -> str:
    return ", ".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value).lower()


def verifiers_part() -> str:
    rows = [[f"`{name}`", verifier.help, f"{verifier.wants}."] for name, verifier in VERIFIERS.items()]
    return table("Verifier | Right if | `answer`", *rows)


def tasks_part() -> str:
    measured = figures("tasks") or {}
    heads = ["Suite", *(found["title"] for found in measured.values())]
    rows = [[f"`{name}`", *(_rate(found["suites"].get(name)) for found in measured.values())] for name in SUITES]
    tokens = ["Tokens a word of the texts", *(f"{found['tokens_a_word']:.2f}" for found in measured.values())]
    return table(" | ".join(heads), *rows, tokens)


def _rate(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured on this model"
    if not found["judged"]:
        return "not judged"
    if "rate" not in found:
        return f"left out: {found['left_out']}"
    words = f"{found['right']} of {found['n']} ({found['low']:.0%} to {found['high']:.0%})"
    return f"left out: {words}" if found["left_out"] else words
