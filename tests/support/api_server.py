"""What the tests of the API ask a live server for, and the engine that stands behind it."""

import time

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from kvq_core.pipeline.compare import compare
from kvq_core.record.events import Finished, LaneProgress, Step
from tests.support.sample_record import make_sample

ENDPOINTS = {
    "/compare",
    "/add_lane",
    "/estimate",
    "/methods",
    "/models",
    "/presets",
    "/preset",
    "/claims",
    "/runs",
    "/run",
    "/arrays",
    "/share",
    "/advise",
    "/decide",
    "/estimate_decision",
    "/decision",
    "/fits",
    "/study",
    "/estimate_study",
    "/study_result",
    "/study_rows",
    "/share_study",
}
SMALL = {"prompt": "The tide came in. " * 12, "max_new_tokens": 10, "lanes": [{"method": "kivi", "label": "KIVI"}]}


class Engine:
    """Runs the model, slowed down to be watched; a prompt can ask for a stand-in instead: "endless", or "named ID"."""

    def __init__(self):
        self.at_work = 0

    def compare(self, spec, store, owner=""):
        self.at_work += 1
        try:
            kind, *rest = spec.prompt.split()
            if kind == "endless":
                yield from self._endless(spec)
            elif kind == "named":
                yield from self._named(rest[0], store)
            else:
                for event in compare(spec, store):
                    yield event
                    time.sleep(0.1 if isinstance(event, Step) else 0)
        finally:
            self.at_work -= 1

    def _endless(self, spec):
        for done in range(1, 100_000):
            yield Step(done, 100_000, ["x"] * done, [LaneProgress("KIVI", ["y"] * done, [0.5] * done, [], None)])
            time.sleep(0.05)

    def _named(self, id, store):
        record, arrays = make_sample(id=id, prompt=f"named {id}", text=f"I am {id}.")
        yield Step(1, 1, [record.reference.text], [])
        store.save(record, arrays)
        yield Finished(record, arrays)


def until(true, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def refusal(client: Client, *arguments: object, api_name: str) -> str:
    with pytest.raises(AppError) as caught:
        client.predict(*arguments, api_name=api_name)
    return str(caught.value)
