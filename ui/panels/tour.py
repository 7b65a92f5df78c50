"""The guided tour as data: steps that open stored examples in the real views."""

import tomllib
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from kvq_core.pipeline.examples import example_ids
from kvq_core.presets import FOLDER

FILE = FOLDER / "learn" / "tour.toml"
TOY, LAB = "toy", "lab"  # figures of steps that have their own


class TourStep(BaseModel):
    """Where a step looks: an example, a view, the figure in it that the text is about, and what is selected there
    (otherwise where there is most to see)."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    title: str
    text: str
    action: str = Field(alias="try")  # one thing to do
    on: str  # what it is done with, as a CSS selector
    example: str
    view: str
    figure: str  # "toy": that of ui.panels.toy, in the step itself; "lab": the page of ui.export.lab
    layer: int | None = None
    head: int | None = None
    token: int | None = None

    @property
    def selection(self) -> dict[str, int]:
        chosen = {"layer": self.layer, "head": self.head, "token": self.token}
        return {name: value for name, value in chosen.items() if value is not None}


@cache
def tour() -> tuple[TourStep, ...]:
    return tuple(TourStep(**step) for step in tomllib.loads(FILE.read_text(encoding="utf-8"))["steps"])


@cache
def shipped_ids() -> dict[str, str]:
    """Run ids of the examples that ship with the app, by name; read once."""
    return example_ids()
