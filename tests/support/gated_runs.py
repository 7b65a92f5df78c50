"""Runs that wait to be let go, for tests of who runs when."""

import threading
import time

from kvq_core.record.events import Loading, Step


def until(true, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Engine:
    """Runs that wait to be let go, and a note of what overlapped."""

    def __init__(self):
        self.gates: dict[str, threading.Event] = {}
        self.order: list[str] = []
        self.at_work = self.most = 0

    def run(self, name: str, steps: int = 3):
        self.gates[name] = threading.Event()

        def events():
            self.order.append(name)
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            try:
                yield Loading("model")
                assert self.gates[name].wait(20)
                for done in range(1, steps + 1):
                    yield Step(done, steps, ["x"] * done, [])
            finally:
                self.at_work -= 1

        return events
