"""The reference table: a study that ships, of every method and format at matched bytes, matched windows and deployed
settings, on both models.

A row for another model is a store that holds the same study of it; ``check_cells`` computes one cell in twenty again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

import numpy as np

from kvq_core.errors import KvqError, ModelError, StoreError
from kvq_core.models import available_models
from kvq_core.pipeline.compare import compare
from kvq_core.presets import FOLDER
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.events import end_of
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.record.store import Store
from kvq_core.studies.cells import Cell, CellPlan
from kvq_core.studies.spec import StudySpec, read_study

FILE = FOLDER / "table" / "study.toml"
QUICK_TOKENS = 32
ONE_IN = 20  # cells, of which one is computed again
# What another processor moves, measured between AVX2 and SSE on one cell of 64 lanes: one lane's mean KLD by .39 of
# itself, for what rounds otherwise is stored at another level, and the lane in the middle by .003. Widths that follow
# the data may move bytes a little.
FACTOR = 2.0
NEAR = 0.05
SMALL = 1e-4  # nats, under which nothing is told apart
BYTES_NEAR = 0.02
MATCHED_BITS = 4.5  # an element, over all prompts of the table; the nearest of a method may store 2 % more
# How labels of lanes begin that are at matched settings, and what the table calls these.
SETTINGS = {
    f"{MATCHED_BITS} bits: ": "matched bytes",
    "4 + 64: ": "matched windows",
    "": "as shipped, or as its paper gives it",
}
Each = TypeVar("Each")


def table_spec(quick: bool = False, model: str | None = None) -> StudySpec:
    """The study of the table: of the models that are on this machine, or of another ``model``; ``quick``: the first
    model, a prompt of each kind, every method once, QUICK_TOKENS new tokens. Its prompts are inside.

    Raises ModelError where none of its models is here.
    """
    found = read_study(FILE)
    prompts, _ = found.prompts.read()
    here = {choice.id for choice in available_models()}
    models = (model,) if model is not None else tuple(each for each in found.models if each in here)
    if not models:
        raise ModelError(f"None of {', '.join(found.models)} is on this machine; name another with --model.")
    comparison = found.comparison
    if quick:
        models, prompts = models[:1], tuple(_first(prompts, (prompt.group for prompt in prompts)))
        lanes = tuple(_first(comparison.lanes, (lane.method for lane in comparison.lanes)))
        comparison = comparison.model_copy(update={"lanes": lanes, "max_new_tokens": QUICK_TOKENS})
    return found.model_copy(update={"models": models, "comparison": comparison}).whole(prompts)


def _first(every: Iterable[Each], kinds: Iterable[object]) -> Iterator[Each]:
    """Of each kind the first one."""
    seen = set()
    for one, kind in zip(every, kinds, strict=True):
        if kind not in seen:
            seen.add(kind)
            yield one


def setting(label: str) -> tuple[str, str]:
    """At what a lane is matched, and its name without that."""
    begin = next(begin for begin in SETTINGS if label.startswith(begin))
    return SETTINGS[begin], label.removeprefix(begin)


@dataclass(frozen=True)
class CheckedCell:
    """A cell that was computed again: ``apart`` is the largest difference of the KLD of a token, in nats, where they
    were compared; ``why``: what does not agree, None where all does."""

    run: str
    prompt: str
    apart: float | None
    why: str | None


def sampled_cells(plan: CellPlan) -> list[Cell]:
    """One cell in ONE_IN, by the hash of its id and the study's: nobody who submits a table picks them."""
    order = sorted(plan.cells, key=lambda cell: sha256(f"{plan.id} {cell.id}".encode()).digest())
    return order[: -(-len(order) // ONE_IN)]


def check_cells(plan: CellPlan, store: Store) -> Iterator[CheckedCell]:
    """Every chosen cell of a table that was submitted, computed again beside what the ``store`` holds of it.

    Raises StoreError where a run of the table is not there or damaged: a table is shown as a whole or not at all.
    """
    for cell in plan.cells:
        if not store.exists(cell.id):
            raise StoreError(f"Prompt {cell.prompt.id!r} of {cell.title}: run {cell.id} is not in this store.")
    for cell in sampled_cells(plan):
        known, arrays = store.load(cell.id)
        yield _compared(cell, known, arrays)


def _compared(cell: Cell, known: Record, arrays: Arrays) -> CheckedCell:
    """What of the followed text and of the lanes' KLD is another when the cell is computed again."""
    try:
        fresh = end_of(compare(cell.spec))
    except KvqError as error:
        return CheckedCell(cell.id, cell.prompt.id, None, str(error))
    if fresh.record.reference.token_ids != known.reference.token_ids:
        return CheckedCell(cell.id, cell.prompt.id, None, "the reference's answer is another")
    most, moved = 0.0, []
    for at, (lane, again) in enumerate(zip(known.lanes, fresh.record.lanes, strict=True)):
        one, other = (array(each, f"lane/{at}/kld") for each in (fresh.arrays, arrays))
        if one is None or other is None or one.shape != other.shape:
            if one is not other:
                return CheckedCell(cell.id, cell.prompt.id, None, f"{lane.label} is scored otherwise")
            continue
        most = max(most, float(np.abs(one - other).max(initial=0.0)))
        if why := _differs(float(one.mean()), float(other.mean()), again, lane):
            return CheckedCell(cell.id, cell.prompt.id, most, why)
        moved.append(abs(one.mean() - other.mean()) / max(one.mean(), other.mean(), SMALL))
    if moved and (middle := float(np.median(moved))) > NEAR:
        return CheckedCell(cell.id, cell.prompt.id, most, f"half of the lanes' KLD are {middle:.0%} off or more")
    return CheckedCell(cell.id, cell.prompt.id, most, None)


def _differs(here: float, told: float, again: LaneRecord, lane: LaneRecord) -> str | None:
    """What no other processor explains: bytes, or a mean KLD that is another number altogether."""
    own, theirs = (each.memory.kv_ratio if each.memory else 0.0 for each in (again, lane))
    if not np.isclose(own, theirs, rtol=BYTES_NEAR, atol=0):
        return f"{lane.label}: {theirs:.1%} of the bytes, and {own:.1%} here"
    if abs(here - told) > SMALL and max(here, told) > FACTOR * min(here, told):
        return f"{lane.label}: a mean KLD of {told:.2g} nats, and {here:.2g} here"
    return None
