"""The JSON that the scripts here write and the documents show, a model apart where several were measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvq_core.claims.tables import markdown_rows
from kvq_core.spec import DEFAULT_MODEL

HERE = Path(__file__).resolve().parent


def figures(name: str) -> dict[str, Any] | None:
    """A file that was measured, or None while it is not there."""
    file = HERE / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def keep(file: Path, model: str, result: dict[str, Any]) -> None:
    """Put what was measured on a model beside what others gave, the default model first."""
    held = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    held[model] = result
    ordered = {name: held[name] for name in sorted(held, key=lambda name: name != DEFAULT_MODEL)}
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def table(head: str, *rows: Sequence[str]) -> str:
    """A Markdown table; ``head`` is ``A | B``."""
    return "\n".join(markdown_rows([head.split(" | "), *rows]))
