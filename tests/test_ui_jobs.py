"""Runs at work: one at a time in the order pressed, watched or not, cancelled at any point."""

import threading
import time

import pytest

from kvq_core.errors import MethodError
from kvq_core.events import Loading, Step
from ui.desk import Desk
from ui.jobs import Jobs


def until(true, seconds: float = 20) -> None:
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


@pytest.fixture
def engine():
    return Engine()


def test_runs_follow_each_other_in_the_order_pressed(engine):
    desk = Desk()
    jobs = Jobs(desk)
    running = [jobs.start(name, engine.run(name)) for name in "abc"]
    until(lambda: engine.order == ["a"])
    assert [desk.ahead(job.ticket) for job in running] == [0, 1, 2]
    for name, job in zip("abc", running, strict=True):
        engine.gates[name].set()
        until(lambda job=job: job.over)
    assert engine.order == ["a", "b", "c"] and engine.most == 1
    assert [desk.ahead(job.ticket) for job in running] == [0, 0, 0]


def test_a_late_look_sees_the_newest_step_only(engine):
    jobs = Jobs(Desk())
    job = jobs.start("a", engine.run("a", steps=5))
    assert jobs.watch(job.ticket) is job and jobs.watch(job.ticket) is None
    engine.gates["a"].set()
    until(lambda: job.over)
    first, last = job.news()
    assert isinstance(first, Loading) and last.done == 5 and job.news() == []
    assert not job.cancelled and job.error is None


def test_cancelling_stops_what_runs_and_what_waits(engine):
    desk = Desk()
    jobs = Jobs(desk)
    first, second, third = (jobs.start(name, engine.run(name)) for name in "abc")
    until(lambda: engine.order == ["a"])
    jobs.forget("b")
    until(lambda: second.over)
    assert second.cancelled and jobs.watch(second.ticket) is None and engine.order == ["a"]
    jobs.forget("a")
    engine.gates["a"].set()
    until(lambda: first.over)
    assert first.cancelled
    engine.gates["c"].set()
    until(lambda: third.over)
    assert not third.cancelled and engine.order == ["a", "c"] and engine.most == 1


def test_pressing_again_replaces_ones_own_run(engine):
    jobs = Jobs(Desk())
    old = jobs.start("a", engine.run("old"))
    until(lambda: engine.order == ["old"])
    new = jobs.start("a", engine.run("new"))
    for gate in engine.gates.values():
        gate.set()
    until(lambda: old.over and new.over)
    assert old.cancelled and not new.cancelled and jobs.watch(old.ticket) is None and jobs.watch(new.ticket) is new


def test_a_failure_is_kept_and_the_next_run_goes_on(engine):
    def fails():
        raise MethodError("no such thing")
        yield

    jobs = Jobs(Desk())
    bad, good = jobs.start("a", fails), jobs.start("b", engine.run("b"))
    engine.gates["b"].set()
    until(lambda: bad.over and good.over)
    assert str(bad.error) == "no such thing" and good.error is None and good.news()[-1].done == 3
