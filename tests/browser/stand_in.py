"""An engine that computes nothing: runs as long as a test wants them to, with records of full size."""

import hashlib
import threading
from collections.abc import Iterator

from kvq_core.events import Event, Finished, LaneProgress, Loading, Prefill, Step
from kvq_core.pipeline.estimate import Estimate
from kvq_core.spec import ComparisonSpec
from kvq_core.store.store import Store
from tests.support.ui_record_factory import make_run

STEPS = 4


def estimate(spec: ComparisonSpec) -> Estimate:
    return Estimate(20, 8192, 0.5, 10**9, [], (), 84, 10**6, "cpu")


class Engine:
    """``free`` lets runs past their first step."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def compare(self, spec: ComparisonSpec, store: Store, owner: str = "") -> Iterator[Event]:
        yield Loading(spec.model)
        yield Prefill(20, 20)
        for done in range(1, STEPS + 1):
            words = ["word "] * done
            yield Step(done, STEPS, words, [LaneProgress(x.label, words, [0.1] * done, [], None) for x in spec.lanes])
            assert self.free.wait(100)
        record, arrays = make_run(len(spec.lanes), labels=tuple(lane.label for lane in spec.lanes))
        id = hashlib.sha256(spec.canonical().encode()).hexdigest()[:16]
        record = record.model_copy(update={"id": id, "spec": spec.model_dump(mode="json")})
        store.save(record, arrays)
        yield Finished(record, arrays)
