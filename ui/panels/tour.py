"""The guided tour as data: steps that open stored examples in the real views."""

import tomllib
from functools import cache

from pydantic import BaseModel, ConfigDict

from kvq_core.pipeline.examples import example_ids
from kvq_core.presets import FOLDER

FILE = FOLDER / "learn" / "tour.toml"


class Step(BaseModel):
    """Where a step looks: an example, a view, the figure in it that the text is about, and what is selected there
    (otherwise where there is most to see)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    text: str
    example: str
    view: str
    figure: str
    layer: int | None = None
    head: int | None = None
    token: int | None = None

    @property
    def selection(self) -> dict[str, int]:
        chosen = {"layer": self.layer, "head": self.head, "token": self.token}
        return {name: value for name, value in chosen.items() if value is not None}


@cache
def tour() -> tuple[Step, ...]:
    return tuple(Step(**step) for step in tomllib.loads(FILE.read_text(encoding="utf-8"))["steps"])


@cache
def shipped_ids() -> dict[str, str]:
    """Run ids of the examples that ship with the app, by name; read once."""
    return example_ids()
