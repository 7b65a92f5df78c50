"""Lanes added to a finished run: its answer is followed again, on the prompt as it is held in memory or read anew.

An added lane is a run of its own with a parent. Lanes ride without a reference row, whose logits come from a batch of
its own: so the numbers of a lane do not depend on what else is held, and are those of a full run within what another
size of the batch moves.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import CHUNK
from kvq_core.engine.prompt_memory import READINGS, ReadPrompt
from kvq_core.errors import SpecError, excerpt
from kvq_core.logs import log_run
from kvq_core.machine.memory import memory_errors_as_limits
from kvq_core.models import LoadedModel
from kvq_core.pipeline.assemble import assemble, id_of, place_of
from kvq_core.pipeline.batch import GivenAnswer
from kvq_core.pipeline.compare import kept_record, save_finished, stored_run
from kvq_core.pipeline.loading import load_model
from kvq_core.pipeline.prompt import script
from kvq_core.pipeline.state import Run
from kvq_core.record.events import Event, Prefill
from kvq_core.record.fields import RESULTS_VERSION, Record
from kvq_core.record.shipped import find_run
from kvq_core.record.store import Store
from kvq_core.spec import Capture, ComparisonSpec, Lane, parse_lane, parse_spec, with_labels

EVERY = Capture(layers="all", detail="deep")


def add_lane(run: Record | str, lane: Lane, store: Store | None = None) -> Record:
    """Compute one lane more for a finished run, which may be given by its id, and return its record, a run of its own.

    The prompt is not read again where this process read it lately. Captures are off: maps are asked for one by one.
    Raises SpecError where the run cannot be followed here, StoreError where it, or the new one, cannot be kept.
    """
    return kept_record(adding(parent_of(run, store), [lane], store))


def parent_of(run: Record | str, store: Store | None) -> Record:
    """A finished run, which may be given by its id. Raises StoreError where it neither ships nor is in the store."""
    return run if isinstance(run, Record) else find_run(run, store)[0]


def adding(
    parent: Record, lanes: Sequence[Lane], store: Store | None = None, owner: str = "", about: str = ""
) -> Generator[Event]:
    """``add_lane`` of several lanes in one batch, as ``compare`` tells of a run. ``owner``: only what was read for them
    is looked for in memory. ``about``: see ``spec_of``."""
    return following(parent, spec_of(parent, lanes, about), store, owner)


def following(parent: Record, spec: ComparisonSpec, store: Store | None, owner: str) -> Generator[Event]:
    """``adding`` of what ``spec`` asks for."""
    with memory_errors_as_limits():
        model = yield from load_model(spec)
        yield from adding_on(model, parent, spec, store, owner)


def adding_on(
    model: LoadedModel, parent: Record, spec: ComparisonSpec, store: Store | None = None, owner: str = ""
) -> Generator[Event]:
    """``adding`` on a model that is in memory already; ``spec``: that of the new run."""
    check_followed(model, parent)
    read = script(model, spec)
    place = {**place_of(model, spec.lanes), "parent": parent.parent or parent.id}
    addition = Addition(id_of(spec.canonical(), read.ids, place), model, spec, read, owner, parent)
    with log_run(addition.id, spec.question, model=spec.model, parent=place["parent"]) as told:
        finished = stored_run(addition.id, store)
        if finished is None:
            yield from addition.stages()
            finished = save_finished(*assemble(addition), store)
        told |= {"reused": finished.reused}
    yield finished


def capture_lane(run: Record | str, label: str, store: Store | None = None) -> Record:
    """Look at one lane of a finished run, by its label, in every layer and head, and return the record of it, whose
    arrays a store holds: score maps, attention at more steps, key distributions. Its KLD stands beside the one that
    was recorded: the two differ by what another processor moves. Raises SpecError as ``add_lane`` does."""
    parent = parent_of(run, store)
    return kept_record(capturing(parent, index_of(parent, label), store))


def capturing(
    parent: Record, at: int, store: Store | None = None, owner: str = "", capture: Capture = EVERY
) -> Generator[Event]:
    """``capture_lane`` as ``compare`` tells of a run."""
    return following(parent, captures_of(parent, at, capture), store, owner)


def captures_of(parent: Record, at: int, capture: Capture = EVERY) -> ComparisonSpec:
    """What is asked where a lane of a run is looked at, in every layer and head unless ``capture`` says less."""
    asked = parse_spec(parent.spec)
    changes = {"capture": capture, "floors": "storage", "free_text": False, "lanes": (asked.lanes[at],)}
    return asked.model_copy(update=changes)


def index_of(record: Record, label: str) -> int:
    """Which of a run's lanes has that label. Raises SpecError."""
    labels = [lane.label for lane in record.lanes]
    if label not in labels:
        raise SpecError(f"Run {record.id} has no lane {excerpt(label)}; its lanes: {', '.join(labels)}.")
    return labels.index(label)


def spec_of(parent: Record, lanes: Sequence[Lane], about: str = "") -> ComparisonSpec:
    """What is asked where lanes are added to a run: its comparison with these lanes alone, nothing captured; ``about``
    something, which its notes say, they write no text of their own and are not the parent's lanes. Raises SpecError."""
    if not lanes:
        raise SpecError("No lane was given; give at least one.")
    asked = parse_spec({**parent.spec, "lanes": []})
    changes = {"capture": Capture(detail="off"), "floors": "storage"}
    changes |= {"notes": about, "free_text": False} if about else {}
    taken = [lane.get("label") or parse_lane(lane).default_label for lane in parent.spec["lanes"]]
    given = [lane.model_dump(mode="json", exclude_defaults=True) for lane in with_labels(lanes, taken)]
    told = asked.model_copy(update=changes).model_dump(mode="json")
    return asked.model_copy(update={**changes, "lanes": parse_spec({**told, "lanes": given}).lanes})


def check_followed(model: LoadedModel, parent: Record) -> None:
    """Raises SpecError where this process would compute something else than the parent did."""
    made, here = parent.environment, str(model.dtype).removeprefix("torch.")
    reason = None
    if parent.results_version != RESULTS_VERSION:
        reason = f"is of results version {parent.results_version}, this program's is {RESULTS_VERSION}"
    elif made.model_hash != model.model_hash:
        reason = f"was computed with another {excerpt(made.model)} than the one here"
    elif made.dtype != here:
        reason = f"was computed in {made.dtype}, here it would be {here}"
    elif made.reference is not None:
        reason = f"is scored against the logits of another file, {excerpt(made.reference.model_title)}"
    if reason:
        raise SpecError(f"No lane can be added to run {parent.id}: it {reason}. Run the comparison again.")


@dataclass
class Addition(Run):
    """Lanes added to ``parent``, in progress."""

    _found: ReadPrompt | None = field(init=False, default=None)

    def _passes(self) -> list[Iterator[int]]:
        passes = super()._passes()
        self._found = READINGS.take(self._key)
        if self._found is None:
            return passes
        self.prefill, self.stress, self.unchanged = self._found.prefill, self._found.stress, self._found.unchanged
        return []

    def _stress(self) -> Iterator[Event]:
        if self._found is None:
            yield from super()._stress()
        else:
            self._reading = self._found
        began = time.perf_counter()
        assert self.parent is not None
        tokens, floor = self.parent.reference.token_ids, self.parent.noise_floor.metrics
        apart = self.spec.capture.detail == "off"  # what is captured is against a reference in the same batch
        logits = (yield from self._logits(tokens)) if apart else None
        self.answer = GivenAnswer(tokens, floor.near_tie_margin if floor else 0.0, logits)
        self.seconds["encode"] = self.seconds.get("encode", 0.0) + time.perf_counter() - began

    def _logits(self, tokens: list[int]) -> Generator[Event, None, Tensor]:
        """The reference's logits on its own tokens, which are known, so that a pass takes many: read where they are not
        held."""
        if (key := tuple(tokens)) not in self._reading.answered:
            spec, found = self.spec.model_copy(update={"score_chunk": CHUNK}), list[Tensor]()
            decode = Decode(self.model, self.prefill, spec, [], self.stress, follow=tokens)
            for _ in (*decode.encode(), *decode.fill()):
                pass
            for _ in decode.steps(lambda reference, _, __: found.append(reference.clone()), None, lambda _: None):
                yield Prefill(len(self.ids) + len(decode.token_ids), len(self.ids) + len(tokens))
            self._reading.answered[key] = torch.cat(found) if found else torch.empty(0, 0)
        return self._reading.answered[key]
