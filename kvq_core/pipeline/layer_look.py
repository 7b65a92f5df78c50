"""A finished run looked at again in one layer: score maps and attention of every head at every step, and the spread of
its keys, for lanes whose captures kept other layers. What the run's rows left in memory is enough for that; where it is
gone, the lanes follow the answer once more, and every pass stops at that layer."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from torch import Tensor

from kvq_core.analysis.looks import LOOKED_AT, REPLAYED, Look
from kvq_core.analysis.plans import lane_of
from kvq_core.analysis.scored import UNSCORED, has_steps
from kvq_core.capture.attention import SINKS
from kvq_core.capture.distribution import QUANTILES
from kvq_core.capture.layer_maps import LayerMaps, layer_maps
from kvq_core.capture.plan import LOOKED
from kvq_core.engine.fidelity import TOPK
from kvq_core.engine.key_log import Place, Replay
from kvq_core.engine.prompt_memory import READINGS
from kvq_core.engine.replaying import Divergences, follow, kit_of, log_of, stops_at
from kvq_core.errors import LimitError, SpecError
from kvq_core.logs import log_run
from kvq_core.machine.memory import memory_errors_as_limits
from kvq_core.models import LoadedModel
from kvq_core.pipeline.added import Addition, check_followed, parent_of
from kvq_core.pipeline.assemble import id_of, place_of
from kvq_core.pipeline.batch import Batch
from kvq_core.pipeline.compare import kept_record, save_finished, stored_run
from kvq_core.pipeline.footprint import batches
from kvq_core.pipeline.loading import load_model
from kvq_core.pipeline.prompt import script
from kvq_core.record.events import Event, Finished, Replaying
from kvq_core.record.fields import CaptureInfo, LaneRecord, Record
from kvq_core.record.store import Store
from kvq_core.spec import Capture, ComparisonSpec, Lane, parse_spec

AGAIN = "its figures are those of run {run}; its maps were computed afterwards, in a batch that stopped at the layer"


def look_at(run: Record | str, layer: int, store: Store | None = None) -> Record:
    """Look at all lanes of a finished run in one layer, and return the record of it, a run of its own, whose arrays a
    store holds. Where this process holds what the run's rows left, nothing is computed but the maps; else the KL of the
    layer's attention there stands beside the one that was recorded, and of the last layer, whose passes come to the
    logits, the KLD. Raises SpecError as ``add_lane`` does, and for a
    layer that the model has not."""
    parent = parent_of(run, store)
    lanes = [at for at, lane in enumerate(parent.lanes) if lane.status == "done"]
    found = look_held(parent, lanes, layer, store)
    return kept_record([found] if found is not None else looking_at(parent, lanes, layer, store))


def held_maps(whole: Record, lanes: Sequence[int], layer: int) -> LayerMaps | None:
    """Maps of some lanes of a run, or of those drawn with it, from what their rows left in memory; None where that is
    not all there."""
    places = [_place(whole, at, layer) for at in lanes]
    of_run = READINGS.replay(whole.id)
    if not places or None in places or of_run is None or of_run.reference is None:
        return None
    if layer not in of_run.reference[0].keys or not has_steps(whole):
        return None
    return layer_maps(of_run.reference, [place for place in places if place is not None], layer)


def maps_in_memory(whole: Record, lanes: Sequence[int], layer: int) -> Look | None:
    """``look_held`` that is kept nowhere, and has no id."""
    if layer not in range(whole.environment.layers) or any(lane_of(whole, at) is None for at in lanes):
        return None
    found = held_maps(whole, lanes, layer)
    if found is None:
        return None
    return _record(whole, lanes, layer, spec_of_look(whole, lanes, layer), "", found, REPLAYED)


def look_held(whole: Record, lanes: Sequence[int], layer: int, store: Store | None = None) -> Finished | None:
    """``held_maps`` as a run of its own, kept in the store. Raises SpecError for what cannot be asked."""
    spec = spec_of_look(whole, lanes, layer)
    found = held_maps(whole, lanes, layer)
    if found is None:
        return None
    place = {"parent": whole.parent or whole.id, "looked": REPLAYED, "of": _of(whole, lanes)}
    id = id_of(spec.canonical(), whole.reference.prompt_token_ids, place)
    return stored_run(id, store) or save_finished(*_record(whole, lanes, layer, spec, id, found, REPLAYED), store)


def looking_at(
    whole: Record, lanes: Sequence[int], layer: int, store: Store | None = None, owner: str = ""
) -> Generator[Event]:
    """``look_at`` of some lanes of a run, or of those drawn with it, as ``compare`` tells of a run: they follow its
    answer again, up to the layer."""
    spec = spec_of_look(whole, lanes, layer)
    with memory_errors_as_limits():
        model = yield from load_model(spec)
        yield from looking_on(model, whole, lanes, layer, store, owner)


def looking_on(
    model: LoadedModel, whole: Record, lanes: Sequence[int], layer: int, store: Store | None = None, owner: str = ""
) -> Generator[Event]:
    """``looking_at`` on a model that is in memory already."""
    check_followed(model, whole)
    if layer not in model.shape.captured:
        raise SpecError(f"layer = {layer} of this model is not looked at: {LOOKED}.")
    spec = spec_of_look(whole, lanes, layer)
    read = script(model, spec)
    place = {**place_of(model, spec.lanes), "parent": whole.parent or whole.id, "looked": LOOKED_AT}
    look = LookAddition(
        id_of(spec.canonical(), read.ids, place), model, spec, read, owner, whole, layer=layer, at=tuple(lanes)
    )
    with log_run(look.id, spec.question, model=spec.model, parent=place["parent"], layer=layer) as told:
        finished = stored_run(look.id, store)
        if finished is None:
            yield from look.stages()
            assert look.found is not None
            finished = save_finished(*_record(whole, lanes, layer, spec, look.id, look.found, LOOKED_AT), store)
        told |= {"reused": finished.reused}
    yield finished


def spec_of_look(whole: Record, lanes: Sequence[int], layer: int) -> ComparisonSpec:
    """What is asked then. Raises SpecError."""
    if not 0 <= layer < whole.environment.layers:
        raise SpecError(f"layer = {layer} does not exist; the model has layers 0 to {whole.environment.layers - 1}.")
    if not has_steps(whole):
        raise SpecError(f"Run {whole.id} has no step to look at: {UNSCORED}.")
    given = [lane_of(whole, at) for at in lanes]
    if not given or None in given:
        what = "No lane was given to look at; give at least one." if not given else "A lane of this run is gone here."
        raise SpecError(what)
    asked = parse_spec({**whole.spec, "lanes": []})
    changes = {"capture": Capture(layers=(layer,), detail="deep"), "floors": "storage", "free_text": False}
    return asked.model_copy(update={**changes, "notes": LOOKED_AT, "lanes": tuple(given)})


@dataclass
class LookAddition(Addition):
    """Lanes led along the answer of ``parent`` again, beside its reference, up to a ``layer``; ``at``: which of its
    lanes they are. ``found`` is what was seen."""

    layer: int = 0
    at: tuple[int, ...] = ()
    found: LayerMaps | None = None
    _klds: list[Tensor] = field(init=False, default_factory=list)  # of each lane, where passes went up to the logits

    def stages(self) -> Iterator[Event]:
        began = time.perf_counter()
        yield from self._prefill()
        yield from self._stress()
        places: list[Place | None] = []
        for lanes in batches(self.spec.lanes, self.size):
            yield from self._led(lanes)
            own = self.batches[-1].places()
            places += own[1:] if places else own
            self.batches[-1].release()
        reference, lanes_at = places[0], [place for place in places[1:] if place is not None]
        if reference is None or len(lanes_at) < len(self.spec.lanes):
            raise LimitError(
                "Memory is too short for these maps, or a lane failed on the way. Look at fewer lanes, or free memory."
            )
        self.found = layer_maps(reference, lanes_at, self.layer)
        self.found.arrays.update({f"lane/{at}/looked_kld": kld for at, kld in enumerate(self._klds)})
        self._hold(reference, lanes_at)
        self.seconds["total"] = time.perf_counter() - began

    def _led(self, lanes: list[Lane]) -> Iterator[Event]:
        """A batch of lanes, fed the answer."""
        what = self.model, self.spec, self.script, self.prefill
        assert self.answer is not None
        batch = Batch(*what, lanes, None, self.stress, self._shared, answer=self.answer)
        self.batches.append(batch)
        yield from batch.encode()
        rows, tokens, until = batch.decode.rows, self.answer.token_ids, stops_at(batch.decode, self.layer)
        layers = frozenset(layer for layer in self.model.shape.captured if layer <= until)
        rows.log = log_of(rows, len(self.ids) + len(tokens), layers)
        if rows.log is not None:
            seen = Divergences(self.model) if until == self.model.shape.layers - 1 else None
            for done in follow(batch.decode, tokens, until, seen):
                yield Replaying(done, len(tokens), until)
            self._klds += [] if seen is None else list(seen.of_lanes())
            batch.kit = kit_of(rows, rows.log, self.prefill, self.model.scoring)

    def _hold(self, reference: Place, lanes: Sequence[Place]) -> None:
        """Layers below are there as well: whoever looks at one of them waits no more."""
        assert self.parent is not None
        own: dict[str, dict[int, Place]] = {}
        for at, place in zip(self.at, lanes, strict=True):
            run, number = self.parent.added(at) or (self.parent.id, self.parent.number(at))
            own.setdefault(run, {})[number] = place
        for run, found in own.items():
            before = self._reading.replays.get(run, Replay(None, ()))
            every = dict(enumerate(before.lanes)) | {
                at: _fuller(place, before.lanes[at] if at < len(before.lanes) else None) for at, place in found.items()
            }
            lanes_of = tuple(every.get(at) for at in range(max(every) + 1))
            beside = _fuller(reference, before.reference) if run == self.parent.id else None
            self._reading.replays[run] = Replay(beside, lanes_of)
        READINGS.keep(self._key, self._reading)


def _place(whole: Record, at: int, layer: int) -> Place | None:
    """Where the rows of a lane are held, in that layer."""
    run, number = whole.added(at) or (whole.id, whole.number(at))
    found = READINGS.replay(run)
    place = found.lanes[number] if found is not None and number < len(found.lanes) else None
    return place if place is not None and layer in place[0].keys else None


def _fuller(one: Place, other: Place | None) -> Place:
    """The one that is known in more layers."""
    return one if other is None or len(other[0].keys) < len(one[0].keys) else other


def _of(whole: Record, lanes: Sequence[int]) -> list[str]:
    """The runs that lanes were computed in."""
    return [(whole.added(at) or (whole.id, 0))[0] for at in lanes]


def _record(
    whole: Record, lanes: Sequence[int], layer: int, spec: ComparisonSpec, id: str, found: LayerMaps, how: str
) -> tuple[Record, dict[str, Tensor]]:
    """The record of a look: the lanes as their run has them, with the maps of one layer."""
    capture = CaptureInfo(
        detail=spec.capture.detail,
        layers=[layer],
        heads=found.heads,
        step_edges=found.step_edges,
        position_edges=found.position_edges,
        topk=TOPK,
        attention_steps=found.attention_steps,
        sink_tokens=SINKS,
        depth_edges=found.depth_edges,
        distribution_layers=[layer],
        quantiles=QUANTILES,
    )
    parent = whole.parent or whole.id
    told = [] if how == REPLAYED else [AGAIN.format(run=parent)]
    own: list[LaneRecord] = [whole.lanes[at] for at in lanes]
    update = {
        "id": id,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "spec": spec.model_dump(mode="json"),
        "lanes": [lane.model_copy(update={"notes": [*lane.notes, *told]}) for lane in own],
        "capture": capture,
        "notes": [how],
        "parent": parent,
    }
    fields = {name: getattr(whole, name) for name in Record.model_fields}
    return Record(**{**fields, **update}), {name: values.contiguous() for name, values in found.arrays.items()}
