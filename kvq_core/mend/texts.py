"""The texts that edits are chosen and checked on: those that ship, or a user's own, as token ids."""

import json
from collections.abc import Sequence
from pathlib import Path

from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.presets import FOLDER
from kvq_core.servers.engine_runs import read_prompts

SHIPPED = FOLDER / "mend"
SCORED = 32  # tokens at the end of a text that are scored
FEWEST_TOKENS = 2 * SCORED


def shipped(name: str) -> list[str]:
    """The texts of presets/mend/NAME.jsonl."""
    lines = (SHIPPED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines if line.strip()]


def read(file: Path | None, name: str) -> list[str]:
    """A user's texts, of JSONL prompt and continuation in one, or those that ship. Raises SpecError."""
    if file is None:
        return shipped(name)
    return [prompt.prompt + (prompt.continuation or "") for prompt in read_prompts(file)]


def ids_of(model: LoadedModel, texts: Sequence[str], most: int) -> list[list[int]]:
    """Their first tokens. Raises SpecError for one that is too short to be scored."""
    found = [model.render(text, None, False)[:most] for text in texts]
    for number, ids in enumerate(found, 1):
        if len(ids) < FEWEST_TOKENS:
            raise SpecError(
                f"Prompt {number} has {len(ids)} tokens; {FEWEST_TOKENS} are the fewest: {SCORED} are scored."
            )
    return found


def one_of(model: LoadedModel, texts: Sequence[str], tokens: int) -> list[int]:
    """One text of so many tokens: all of them in turn, again from the first where they are used up."""
    whole = "\n\n".join(texts)
    ids = model.render(whole, None, False)
    again = model.encode("\n\n" + whole)
    while len(ids) < tokens:
        ids += again
    return ids[:tokens]
