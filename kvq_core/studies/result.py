"""What a study found: its table, its figures, and any of its cells as a full run."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvq_core.analysis.verdict import rule
from kvq_core.machine import files
from kvq_core.pipeline.compare import run
from kvq_core.record.fields import Record
from kvq_core.record.store import Store, open_store
from kvq_core.studies.cells import CellPlan
from kvq_core.studies.context import position_lines, recall_lines
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.pairs import Flip, PairedDifference, flips_with_model, pairs, pairs_across
from kvq_core.studies.rows import Row, frame, parquet
from kvq_core.studies.summary import Line, group_lines, lane_lines, task_lines, wide_note

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StudyResult:
    """``rows``: of the cells that are done; ``failed``: why others are not, by run."""

    plan: CellPlan
    rows: list[Row]
    failed: dict[str, str]
    done: int

    @property
    def id(self) -> str:
        return self.plan.id

    @property
    def cells(self) -> dict[str, int]:
        """Counts of cells; prompts that a model cannot be asked are in none."""
        counts = {"total": len(self.plan.cells), "done": self.done, "failed": len(self.failed)}
        return {**counts, "left_out": len(self.plan.left_out)}

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row is model x prompt x lane; columns as ``studies.rows`` lists them."""
        return frame(self.rows)

    @cached_property
    def lanes(self) -> "pd.DataFrame":
        """A row is a lane of a model, with its figures over prompts."""
        import pandas as pd

        return pd.DataFrame(self.lines)

    @cached_property
    def lines(self) -> list[Line]:
        """The same as plain data."""
        return lane_lines(self.table)

    @cached_property
    def groups(self) -> list[Line]:
        """The KLD of every lane in every group of prompts."""
        return group_lines(self.table)

    @cached_property
    def tasks(self) -> list[Line]:
        """How many tasks each lane gets right, in all and by group, see ``summary.task_lines``."""
        return task_lines(self.table)

    @cached_property
    def recall(self) -> list[Line]:
        """Right answers by length and depth of the text, see ``context.recall_lines``."""
        return recall_lines(self.table, self.plan.prompts)

    @cached_property
    def positions(self) -> list[Line]:
        """KLD by position, see ``context.position_lines``."""
        return position_lines(self.table)

    @cached_property
    def pairs(self) -> list[PairedDifference]:
        """Every two lanes of a model."""
        return pairs(self.table)

    @property
    def models(self) -> list[str]:
        """Titles of the models that have rows."""
        return list(dict.fromkeys(line["model"] for line in self.lines))

    @property
    def one_reference(self) -> bool:
        """Whether the lanes of all models are scored against the logits of one file."""
        return self.plan.spec.comparison.reference is not None

    @cached_property
    def across(self) -> list[PairedDifference]:
        """Every two lanes of different models, where they are scored against the same logits."""
        return pairs_across(self.table) if self.one_reference else []

    @property
    def flips(self) -> list[Flip]:
        """Pairs of lanes whose order is another on another model."""
        return flips_with_model(self.pairs)

    def summary(self) -> dict[str, Any]:
        """All figures as plain data: what ``--json`` prints."""
        return {
            "id": self.id,
            "rule": rule(),
            "cells": self.cells,
            "lanes": self.lines,
            "groups": self.groups,
            "tasks": self.tasks,
            "recall": self.recall,
            "positions": self.positions,
            "pairs": [{**asdict(pair), "sentence": pair.sentence} for pair in self.pairs],
            "pairs_across": [{**asdict(pair), "sentence": pair.sentence} for pair in self.across],
            "flips_with_model": [asdict(flip) for flip in self.flips],
            "left_out": [asdict(each) for each in self.plan.left_out],
            "broken": list(self.plan.broken),
            "failed": [{"run": run, "why": why} for run, why in self.failed.items()],
            "notes": self.notes,
        }

    @property
    def notes(self) -> list[str]:
        """What a reader must know before the figures."""
        found = []
        counts = {model: len(rows["prompt"].unique()) for model, rows in self.table.groupby("model", sort=False)}
        if few := [str(model) for model, count in counts.items() if count < FEWEST]:
            need = f"they need {FEWEST} prompts or more"
            found.append(f"There are no intervals for {', '.join(few)}, and no lanes are compared: {need}.")
        if wide := wide_note(self.lines):
            found.append(wide)
        if left := self.plan.left_out:
            found.append(f"Prompts left out: {len(left)}. {left[0].prompt}: {left[0].why}")
        if self.plan.broken:
            found.append(f"Lines of the file left out: {len(self.plan.broken)}. {self.plan.broken[0]}")
        if said := self.plan.passed_over:
            found.append(said)
        if missing := len(self.plan.cells) - self.done:
            found.append(f"{missing} of {len(self.plan.cells)} cells are not done; figures are of the others.")
        return found

    def write_parquet(self, file: Path) -> None:
        """The table as a Parquet file. Raises OSError where it cannot be written."""
        files.write(file, parquet(self.rows))

    def open(self, prompt: str, model: str | None = None, store: Store | None = None) -> Record:
        """A cell as a full run, with captures and all texts; computed where the store does not hold it.

        Raises SpecError where there is no such cell, and what ``run`` raises.
        """
        return run(self.plan.cell(prompt, model).full(), open_store() if store is None else store)
