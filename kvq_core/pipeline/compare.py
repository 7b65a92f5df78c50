"""One comparison from spec to record. The page, the CLI, the API and the tests all call this."""

import time
from collections.abc import Generator, Iterable
from contextlib import suppress

import torch

from kvq_core.errors import StoreError
from kvq_core.logs import log_error, log_run
from kvq_core.machine.memory import memory_errors_as_limits
from kvq_core.models import LoadedModel, identity_of, load, outline, prepare, with_model
from kvq_core.pipeline.answer import ReferenceAnswer, check_kept_here, check_reference, reference_answer
from kvq_core.pipeline.assemble import assemble, run_id
from kvq_core.pipeline.loading import preparing
from kvq_core.pipeline.prompt import script
from kvq_core.pipeline.state import Run
from kvq_core.pipeline.timings import remember
from kvq_core.record.events import Event, Finished, Loading, end_of
from kvq_core.record.fields import Record
from kvq_core.record.store import Store
from kvq_core.spec import ComparisonSpec


def run(spec: ComparisonSpec, store: Store | None = None) -> Record:
    """Run a comparison to its end and return the record; ``compare`` tells what happens meanwhile.

    Raises StoreError where the store cannot keep the run.
    """
    return kept_record(compare(spec, store))


def kept_record(events: Iterable[Event]) -> Record:
    """The record that a run of such events ends with. Raises StoreError where the store cannot keep it."""
    finished = end_of(events)
    if finished.unkept:
        raise StoreError(finished.unkept)
    return finished.record


def compare(spec: ComparisonSpec, store: Store | None = None, owner: str = "") -> Generator[Event]:
    """Run a comparison, reporting every stage; the last event is Finished. The prompt as it was read is held in memory
    for a while, for lanes that its ``owner`` adds.

    A run the store already holds is returned at once. A finished run is saved there, or says why it is not. Closing the
    generator cancels within a step or a prefill chunk and saves nothing. Raises KvqError where the spec cannot be run,
    LimitError where memory ran out: what the run held is free again then.
    """
    spec = with_model(spec)
    with memory_errors_as_limits():
        yield from preparing(spec.model, spec.revision)
        answer = yield from against(spec, store)
        model = load(spec.model, spec.revision)
        yield from compare_on(model, portable_spec(model, spec), store, owner, answer)


def portable_spec(model: LoadedModel, spec: ComparisonSpec) -> ComparisonSpec:
    """The spec with its models named as they are on every machine: the same file is the same run, wherever it lies."""
    id, revision = model.again(spec.model, spec.revision)
    reference = None if spec.reference is None else identity_of(spec.reference)["id"]
    return spec.model_copy(update={"model": id, "revision": revision, "reference": reference})


def against(spec: ComparisonSpec, store: Store | None) -> Generator[Event, None, ReferenceAnswer | None]:
    """The answer of the spec's reference, before its model is loaded; None where it has no other reference, or the
    store holds the run. Raises KvqError where the two do not go together."""
    check_kept_here(spec)
    if spec.reference is None:
        return None
    for step in prepare(spec.reference):
        yield Loading.of(spec.reference, step)
    model = outline(spec.model, spec.revision)
    spec = portable_spec(model, spec)
    check_reference(model, spec)
    read = script(model, spec)
    if store is not None and store.exists(run_id(model, spec, read.ids)):
        return None
    return (yield from reference_answer(model, spec, read, store))


def compare_on(
    model: LoadedModel,
    spec: ComparisonSpec,
    store: Store | None = None,
    owner: str = "",
    answer: ReferenceAnswer | None = None,
) -> Generator[Event]:
    """``compare`` on a model that is in memory already; ``answer``: of the spec's reference, where it is known."""
    read = script(model, spec)
    id = run_id(model, spec, read.ids)
    methods = [rule.method for lane in spec.lanes for rule in lane.every_rule]
    with log_run(id, spec.question, model=spec.model, methods=methods, prompt_tokens=len(read.ids)) as told:
        finished = stored_run(id, store)
        if finished is None:
            if spec.reference is not None and answer is None:
                answer = yield from reference_answer(model, spec, read, store)
            began, comparison = time.perf_counter(), Run(id, model, spec, read, owner, against=answer)
            yield from comparison.stages()
            finished = save_finished(*assemble(comparison), store)
            remember(finished.record, time.perf_counter() - began)
        reference = finished.record.reference
        told |= {"new_tokens": len(reference.token_ids), "reused": finished.reused, "text": reference.text}
    yield finished


def stored_run(id: str, store: Store | None) -> Finished | None:
    """The run, where the store holds it. One that is damaged is computed again: saving replaces it."""
    if store is not None and store.exists(id):
        with suppress(StoreError):
            return Finished(*store.load(id), reused=True)
    return None


def save_finished(record: Record, arrays: dict[str, torch.Tensor], store: Store | None) -> Finished:
    """The finished run, saved where that is possible: a full store must not cost the result."""
    try:
        if store is not None:
            store.save(record, arrays)
    except StoreError as error:
        log_error("run not kept", error, run=record.id)
        return Finished(record, arrays, unkept=str(error))
    return Finished(record, arrays)
