"""A study as it was planned, kept in its store beside its rows: it opens as it was computed, also where its models are
not, and after a change that gives its runs other ids."""

import json
from contextlib import suppress
from itertools import groupby

from pydantic import ValidationError

from kvq_core.errors import KvqError, StoreError
from kvq_core.record.beside import is_id, read_beside, write_beside
from kvq_core.record.store import Store
from kvq_core.spec.part import SpecPart
from kvq_core.studies.cells import Cell, CellPlan, LeftOut, comparison_of, plan
from kvq_core.studies.spec import StudySpec, parse_study

_SPEC, _PLAN = "studies/{}/study.json", "studies/{}/plan.json"


class _Cell(SpecPart):
    id: str
    prompt: str
    tokens: int


class _Model(SpecPart):
    """``revision`` and ``reference`` as the runs of its cells name them."""

    id: str
    title: str
    revision: str | None
    reference: str | None
    cells: tuple[_Cell, ...]


class _Planned(SpecPart):
    models: tuple[_Model, ...]
    left_out: tuple[tuple[str, str, str], ...]
    broken: tuple[str, ...]


def keep_plan(store: Store, planned: CellPlan) -> None:
    """Spec, with its prompts inside, and cells. What is there stays. Raises StoreError."""
    for name, make in ((_SPEC, _spec_of), (_PLAN, _cells_of)):
        if read_beside(store, name.format(planned.id)) is None:
            write_beside(store, name.format(planned.id), make(planned).encode())


def kept_plan(id: str, store: Store) -> CellPlan:
    """The plan of a study that was begun in this store; of one that an older version began, as this machine plans it.

    Raises StoreError where there is none, and KvqError where it has to be planned and cannot be.
    """
    spec = read_beside(store, _SPEC.format(id)) if is_id(id) else None
    if spec is None:
        raise StoreError(f"Study {id[:40]!r} is not in this store. Check the link, or run the study again.")
    found = parse_study(json.loads(spec))
    cells = read_beside(store, _PLAN.format(id))
    if cells is not None:
        with suppress(ValidationError, KvqError, KeyError):
            known = _plan_of(found, _Planned.model_validate_json(cells))
            if known.id == id:  # else its suite makes other prompts by now
                return known
    return plan(found)


def _spec_of(planned: CellPlan) -> str:
    return planned.spec.whole(planned.prompts).canonical()


def _cells_of(planned: CellPlan) -> str:
    models = []
    for id, of_model in groupby(planned.cells, lambda cell: cell.model):
        cells = tuple(of_model)
        of_runs = {"title": cells[0].title, "revision": cells[0].spec.revision, "reference": cells[0].spec.reference}
        own = tuple(_Cell(id=cell.id, prompt=cell.prompt.id, tokens=cell.tokens) for cell in cells)
        models.append(_Model(id=id, **of_runs, cells=own))
    left = tuple((each.model, each.prompt, each.why) for each in planned.left_out)
    return _Planned(models=tuple(models), left_out=left, broken=planned.broken).model_dump_json()


def _plan_of(spec: StudySpec, known: _Planned) -> CellPlan:
    prompts, _ = spec.prompts.read()
    by_id = {prompt.id: prompt for prompt in prompts}
    cells = []
    for model in known.models:
        named = {"model": model.id, "revision": model.revision, "reference": model.reference}
        shared = spec.comparison.model_copy(update=named)
        cells += [
            Cell(cell.id, model.id, model.title, prompt, comparison_of(shared, prompt), cell.tokens)
            for cell, prompt in ((cell, by_id[cell.prompt]) for cell in model.cells)
        ]
    return CellPlan(spec, prompts, tuple(cells), tuple(LeftOut(*each) for each in known.left_out), known.broken)
