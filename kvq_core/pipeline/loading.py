"""Loading the model of a comparison, told as events."""

from collections.abc import Generator, Iterator

from kvq_core.models import LoadedModel, load, prepare
from kvq_core.record.events import Loading
from kvq_core.spec import ComparisonSpec


def preparing(model: str, revision: str | None) -> Iterator[Loading]:
    """What is done until a model lies on this machine as it is loaded."""
    yield Loading(model)
    for step in prepare(model, revision):
        yield Loading.of(model, step)


def load_model(spec: ComparisonSpec) -> Generator[Loading, None, LoadedModel]:
    """The model of a spec, telling what is done until it is in memory."""
    yield from preparing(spec.model, spec.revision)
    return load(spec.model, spec.revision)
