"""An engine that computes nothing: runs as long as a test wants them to, with records of full size."""

import hashlib
import threading
from collections.abc import Iterator, Sequence

from kvq_core.pipeline.added import captures_of, spec_of
from kvq_core.pipeline.estimate import Estimate
from kvq_core.pipeline.layer_look import spec_of_look
from kvq_core.pipeline.timings import Cost, Stages
from kvq_core.pipeline.why import spec_of_why
from kvq_core.record.events import Encoding, Event, Finished, LaneProgress, Loading, Prefill, Step
from kvq_core.record.fields import Record
from kvq_core.record.store import Store
from kvq_core.spec import Capture, ComparisonSpec, Lane
from tests.support.ui_record_factory import make_run

UNCAPTURED = {"acceptance", "delta_p", "key_bits", "kld", "nll", "same_top", "topk_ids", "topk_probs", "value_bits"}
STEPS = 4


def estimate(spec: ComparisonSpec) -> Estimate:
    return Estimate(20, 8192, Cost(40.0, 10**6, Stages(5.0, 5.0, 25.0, 5.0)), 10**9, [], (), 84)


class Engine:
    """``read`` lets runs past their prefill, ``stored`` past their first lane's encoding, ``free`` past their first
    step."""

    def __init__(self) -> None:
        self.read, self.stored, self.free = (threading.Event() for _ in range(3))
        self.open()

    def open(self) -> None:
        """All gates."""
        for gate in (self.read, self.stored, self.free):
            gate.set()

    def compare(self, spec: ComparisonSpec, store: Store, owner: str = "") -> Iterator[Event]:
        yield Loading(spec.model)
        yield Prefill(12, 20)
        assert self.read.wait(100)
        for index, lane in enumerate(spec.lanes):
            yield Encoding(lane.label, index, len(spec.lanes))
            assert self.stored.wait(100)
        for done in range(1, STEPS + 1):
            words = ["word "] * done
            yield Step(done, STEPS, words, [LaneProgress(x.label, words, [0.1] * done, [], None) for x in spec.lanes])
            assert self.free.wait(100)
        yield self._finished(spec, store)

    def add(self, parent: Record, lanes: Sequence[Lane], store: Store, owner: str = "") -> Iterator[Event]:
        """A lane that is added."""
        yield from self._beside(parent, spec_of(parent, lanes), store)

    def ask_why(self, parent: Record, at: int, store: Store, owner: str = "") -> Iterator[Event]:
        yield from self._beside(parent, spec_of_why(parent, at), store)

    def capture(self, parent: Record, at: int, store: Store, owner: str, capture: Capture) -> Iterator[Event]:
        yield from self._beside(parent, captures_of(parent, at, capture), store)

    def look_again(
        self, parent: Record, lanes: Sequence[Lane], layer: int, store: Store, owner: str = ""
    ) -> Iterator[Event]:
        yield from self._beside(parent, spec_of_look(parent, lanes, layer), store)

    def _beside(self, parent: Record, spec: ComparisonSpec, store: Store) -> Iterator[Event]:
        words = ["word "]
        told = [LaneProgress(lane.label, words, [0.1], [], None) for lane in spec.lanes]
        yield Step(1, STEPS, words, told)
        assert self.free.wait(100)
        yield Step(2, STEPS, words, told)  # what was cancelled meanwhile ends here
        yield self._finished(spec, store, parent.parent or parent.id)

    def _finished(self, spec: ComparisonSpec, store: Store, parent: str | None = None) -> Finished:
        record, arrays = make_run(len(spec.lanes), labels=tuple(lane.label for lane in spec.lanes))
        if spec.capture.detail == "off":
            arrays = {name: values for name, values in arrays.items() if name.rpartition("/")[2] in UNCAPTURED}
        id = hashlib.sha256(spec.canonical().encode()).hexdigest()[:16]
        if parent is not None:
            id = hashlib.sha256(f"{parent}{id}".encode()).hexdigest()[:16]
        record = record.model_copy(update={"id": id, "spec": spec.model_dump(mode="json"), "parent": parent})
        store.save(record, arrays)
        return Finished(record, arrays)
