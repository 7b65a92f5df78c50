"""Measuring the lanes of a comparison with packed caches, for the page and the command line."""

from collections.abc import Generator
from dataclasses import dataclass

import torch

from kvq_core.errors import LimitError, MethodError
from kvq_core.machine.memory import memory_errors_as_limits
from kvq_core.machine.progress import Progress
from kvq_core.models import LoadedModel, load, with_model
from kvq_core.packed import LaneMeasurement, MeasureRequest, label_of, measure
from kvq_core.pipeline.loading import preparing
from kvq_core.pipeline.prompt import render
from kvq_core.record.events import progress
from kvq_core.spec import ComparisonSpec, Lane


@dataclass(frozen=True)
class SkippedLane:
    """A lane that was not measured, and why."""

    label: str
    reason: str


def measure_spec(spec: ComparisonSpec, request: MeasureRequest) -> Generator[Progress | LaneMeasurement | SkippedLane]:
    """The unquantized cache, then every lane, one at a time. One that does not fit into memory is left out.

    Raises KvqError where the prompt, the model or the request cannot be measured at all.
    """
    spec = with_model(spec)
    for loading in preparing(spec.model, spec.revision):
        yield progress(loading)
    model = load(spec.model, spec.revision)
    ids = render(model, spec)
    lanes = [None, *spec.lanes]
    for index, lane in enumerate(lanes):
        yield Progress(f"Measuring {label_of(lane, model)}", index, len(lanes), "lanes")
        yield _measured(model, lane, ids, request)


def _measured(
    model: LoadedModel, lane: Lane | None, ids: list[int], request: MeasureRequest
) -> LaneMeasurement | SkippedLane:
    try:
        with memory_errors_as_limits():
            return measure(model, lane, ids, request)
    except MethodError as error:
        return SkippedLane(label_of(lane, model), str(error))
    except LimitError:
        return SkippedLane(label_of(lane, model), "memory ran out; measure fewer tokens or rows")


def unquantized_bytes(measured: list[LaneMeasurement]) -> int | None:
    """Bytes of the cache that the others are compared with; None where it was left out."""
    return next((m.cache_bytes for m in measured if m.method is None), None)


def gpu() -> str | None:
    """The name of this machine's GPU."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
