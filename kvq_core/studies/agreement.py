"""How often fewer prompts say what all of a study's say, as ``benchmarks/one_prompt.py`` counted it."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from kvq_core.presets import FOLDER
from kvq_core.record.fields import RESULTS_VERSION

SHIPPED = FOLDER / "table" / "one_prompt.json"


@cache
def shipped_agreement() -> dict[str, Any] | None:
    """What was counted of the study that ships; None where it was not, or of another version of results."""
    found = json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
    return found if found.get("results_version") == RESULTS_VERSION else None


def line_of(found: dict[str, Any], what: str, prompts: int, model: str | None = None) -> dict[str, Any]:
    """The figures of a ``what`` (tier or format), as ``shipped_agreement`` has them; ``model`` None: of all models
    together."""
    lines: Sequence[dict[str, Any]] = found["lines"]
    return next(line for line in lines if (line["what"], line["prompts"], line["model"]) == (what, prompts, model))
