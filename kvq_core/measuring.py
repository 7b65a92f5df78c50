"""Measuring the lanes of a comparison with packed caches, for the page and the command line."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvq_core.errors import MethodError
from kvq_core.models import load, with_model
from kvq_core.packed import Measured, Request, measure
from kvq_core.render import render
from kvq_core.spec import ComparisonSpec


@dataclass(frozen=True)
class LeftOut:
    """A lane without packed execution, and why."""

    label: str
    reason: str


def measure_spec(spec: ComparisonSpec, request: Request) -> Iterator[Measured | LeftOut]:
    """The unquantized cache, then every lane, one at a time.

    Raises KvqError where the prompt, the model or the request cannot be measured at all.
    """
    spec = with_model(spec)
    model = load(spec.model, spec.revision)
    ids = render(model, spec)
    yield measure(model, None, ids, request)
    for lane in spec.lanes:
        try:
            yield measure(model, lane, ids, request)
        except MethodError as error:
            yield LeftOut(lane.label, str(error))


def gpu() -> str | None:
    """The name of this machine's GPU."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
