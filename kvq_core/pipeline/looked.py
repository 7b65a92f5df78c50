"""A finished run looked at again in one layer: score maps and attention of every head at every step, and the spread of
its keys, for lanes whose captures kept other layers."""

from collections.abc import Generator, Sequence

from kvq_core.analysis.looks import LOOKED_AT
from kvq_core.errors import SpecError, StoreError
from kvq_core.events import Event, Finished
from kvq_core.pipeline.added import following
from kvq_core.record.fields import Record
from kvq_core.spec import Capture, ComparisonSpec, Lane, parse_spec
from kvq_core.store.store import Store, open_store


def look_at(run: Record | str, layer: int, store: Store | None = None) -> Record:
    """Look at all lanes of a finished run in one layer, and return the record of it, a run of its own, whose arrays a
    store holds; its lanes' KLD stands beside the one that was recorded. Raises SpecError as ``add_lane`` does, and for
    a layer that the model has not."""
    parent = run if isinstance(run, Record) else (store or open_store()).load(run)[0]
    for event in looking_at(parent, parse_spec(parent.spec).lanes, layer, store):
        if isinstance(event, Finished):
            if event.unkept:
                raise StoreError(event.unkept)
            return event.record
    raise AssertionError("what is looked at ends with Finished")


def looking_at(
    parent: Record, lanes: Sequence[Lane], layer: int, store: Store | None = None, owner: str = ""
) -> Generator[Event]:
    """``look_at`` of some lanes, of the run or added to it, as ``compare`` tells of a run."""
    return following(parent, spec_of_look(parent, lanes, layer), store, owner)


def spec_of_look(parent: Record, lanes: Sequence[Lane], layer: int) -> ComparisonSpec:
    """What is asked then. Raises SpecError."""
    if not 0 <= layer < parent.environment.layers:
        raise SpecError(f"layer = {layer} does not exist; the model has layers 0 to {parent.environment.layers - 1}.")
    if not lanes:
        raise SpecError("No lane was given to look at; give at least one.")
    asked = parse_spec({**parent.spec, "lanes": []})
    changes = {"capture": Capture(layers=(layer,), detail="deep"), "floors": "storage", "free_text": False}
    return asked.model_copy(update={**changes, "notes": LOOKED_AT, "lanes": tuple(lanes)})
