"""The run that tells what a lane's damage comes from: the lane as it is, and once for each part kept in fp16."""

from collections.abc import Generator

from kvq_core.analysis.causes import about_why, variants, why_lane
from kvq_core.analysis.plans import shape_of
from kvq_core.analysis.why import Kind, Why
from kvq_core.pipeline.added import adding, index_of, parent_of, spec_of
from kvq_core.record.events import Event, Finished, end_of
from kvq_core.record.fields import Record
from kvq_core.record.store import Store
from kvq_core.spec import ComparisonSpec, Lane, parse_spec


def measure_why(run: Record | str, lane: str, store: Store | None = None) -> Why:
    """What the damage of a finished run's lane, by its label, comes from: a batch of up to seven lanes, on the run's
    prompt and answer and with no text of their own. Raises SpecError as ``add_lane`` does, and for a lane that is not
    there."""
    parent = parent_of(run, store)
    at = index_of(parent, lane)
    return why_of(parent, at, end_of(asking_why(parent, at, store)))


def asking_why(parent: Record, at: int, store: Store | None = None, owner: str = "") -> Generator[Event]:
    """The run of it, as ``adding`` tells of one; ``why_of`` reads its end. Raises SpecError."""
    about = about_why(parent.lanes[at].label)
    return adding(parent, [lane for _, lane in _variants(parent, at)], store, owner, about)


def why_of(parent: Record, at: int, finished: Finished) -> Why:
    return why_lane(parent, at, parse_spec(parent.spec).lanes[at], finished.record, finished.arrays)


def spec_of_why(parent: Record, at: int) -> ComparisonSpec:
    """What is asked where the causes of a lane's damage are measured. Raises SpecError as ``asking_why`` does."""
    return spec_of(parent, [lane for _, lane in _variants(parent, at)], about_why(parent.lanes[at].label))


def _variants(parent: Record, at: int) -> list[tuple[Kind | None, Lane]]:
    return variants(parse_spec(parent.spec).lanes[at], shape_of(parent))
