"""Loading the model of a comparison, told as events."""

from collections.abc import Generator

from kvq_core.models import LoadedModel, load, prepare
from kvq_core.record.events import Loading
from kvq_core.spec import ComparisonSpec


def load_model(spec: ComparisonSpec) -> Generator[Loading, None, LoadedModel]:
    """The model of a spec, telling what is done until it is in memory."""
    yield Loading(spec.model)
    for step in prepare(spec.model, spec.revision):
        yield Loading(spec.model, *step)
    return load(spec.model, spec.revision)
