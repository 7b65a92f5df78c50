"""Prompts as lines of JSON."""

from collections.abc import Iterable
from pathlib import Path

from kvq_core.errors import PATH, SpecError, abbreviate
from kvq_core.machine import files
from kvq_core.studies.prompts import StudyPrompt


def write_jsonl(prompts: Iterable[StudyPrompt], path: str | Path) -> int:
    """Write prompts, one a line, whole or not at all; returns how many. Raises SpecError where that is not possible."""
    lines = [prompt.model_dump_json(exclude_defaults=True) + "\n" for prompt in prompts]
    try:
        files.write(Path(path), "".join(lines).encode())
    except OSError as error:
        said = f"{abbreviate(str(path), PATH)} cannot be written: {error.strerror or error}"
        raise SpecError(f"{said}; give another place.") from None
    return len(lines)
