"""Runs at work: one at a time in the order pressed, watched or not, cancelled at any point."""

import asyncio
import time

from kvq_core.errors import LimitError, MethodError
from kvq_core.pipeline.timings import Cost
from kvq_core.record.events import Finished, Loading, Step
from tests.support.gated_runs import until
from ui.service import jobs as jobs_module
from ui.service.jobs import Jobs, follow
from ui.service.line import LinePlace, WaitingLine


def test_runs_follow_each_other_in_the_order_pressed(engine):
    line = WaitingLine()
    jobs = Jobs(line)
    running = [jobs.start(name, engine.run(name)) for name in "abc"]
    until(lambda: engine.order == ["a"])
    assert [line.place(job.ticket).ahead for job in running] == [0, 1, 2]
    for name, job in zip("abc", running, strict=True):
        engine.gates[name].set()
        until(lambda job=job: job.over)
    assert engine.order == ["a", "b", "c"] and engine.most == 1
    assert [line.place(job.ticket).ahead for job in running] == [0, 0, 0] and line.count() == 0


def test_a_late_look_sees_the_newest_step_only(engine):
    jobs = Jobs(WaitingLine())
    job = jobs.start("a", engine.run("a", steps=5))
    assert jobs.watch(job.ticket) is job and jobs.watch(job.ticket) is None
    engine.gates["a"].set()
    until(lambda: job.over)
    first, last = job.news()
    assert isinstance(first, Loading) and last.done == 5 and job.news() == []
    assert not job.cancelled and job.error is None


def test_cancelling_stops_what_runs_and_what_waits(engine):
    line = WaitingLine()
    jobs = Jobs(line)
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
    jobs = Jobs(WaitingLine())
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

    jobs = Jobs(WaitingLine())
    bad, good = jobs.start("a", fails), jobs.start("b", engine.run("b"))
    engine.gates["b"].set()
    until(lambda: bad.over and good.over)
    assert str(bad.error) == "no such thing" and good.error is None and good.news()[-1].done == 3


def test_a_visitors_second_run_waits_behind_the_first_runs_of_others(engine):
    line = WaitingLine()
    jobs = Jobs(line)
    names = ["ann-1", "ann-2", "ann-3", "bob-1", "cat-1", "bob-2"]
    running = {name: jobs.start(name, engine.run(name), visitor=name[:3]) for name in names}
    order = ["ann-1", "bob-1", "cat-1", "ann-2", "bob-2", "ann-3"]
    assert [line.place(running[name].ticket).ahead for name in order] == [0, 1, 2, 3, 4, 5]
    for name in order:
        until(lambda name=name: name in engine.gates and engine.order[-1:] == [name])
        engine.gates[name].set()
        until(lambda name=name: running[name].over)
    assert engine.order == order and engine.most == 1


def test_the_wait_is_what_is_ahead_and_what_is_left_of_the_one_at_work(engine, monkeypatch):
    line = WaitingLine()
    jobs = Jobs(line)
    first = jobs.start("a", engine.run("a"), "a", Cost(10.0))
    until(lambda: engine.order == ["a"])
    second = jobs.start("b", engine.run("b"), "b", Cost(20.0))
    third = jobs.start("c", engine.run("c"), "c")
    fourth = jobs.start("d", engine.run("d"), "d", Cost(5.0))
    began = time.monotonic()
    monkeypatch.setattr("ui.service.line.time.monotonic", lambda: began + 4)
    assert line.place(first.ticket) == LinePlace(0, 0)
    assert line.place(second.ticket) == LinePlace(1, 5) and line.place(third.ticket) == LinePlace(2, 25)
    assert line.place(fourth.ticket) == LinePlace(3, None)  # how long the third takes is not known
    monkeypatch.setattr("ui.service.line.time.monotonic", lambda: began + 60)
    assert line.place(second.ticket).seconds is None  # it takes longer than it was estimated at
    for name in "dcba":
        jobs.forget(name)
    engine.gates["a"].set()


def test_a_run_is_stopped_after_its_time(engine):
    def endless():
        for done in range(1, 10**9):
            yield Step(done, 10**9, [], [])

    jobs = Jobs(line := WaitingLine())
    slow, next_one = jobs.start("a", endless, seconds=0.05), jobs.start("b", engine.run("b"))
    until(lambda: slow.over)
    assert isinstance(slow.error, LimitError) and "stopped after 0.05 s" in str(slow.error)
    until(lambda: "b" in engine.gates)
    engine.gates["b"].set()
    until(lambda: next_one.over)
    assert next_one.error is None and line.count() == 0


def test_a_run_that_has_ended_is_not_stopped():
    def late():
        time.sleep(0.02)
        yield Finished(None, {})

    job = Jobs(WaitingLine()).start("a", late, seconds=0.01)
    until(lambda: job.over)
    assert job.error is None and isinstance(job.news()[-1], Finished)


def test_a_watcher_is_told_its_place_then_what_happens(engine, monkeypatch):
    monkeypatch.setattr(jobs_module, "PLACE_S", 0.01)
    monkeypatch.setattr(jobs_module, "WAIT_S", 0.01)
    line = WaitingLine()
    jobs = Jobs(line)
    first, between = (jobs.start(name, engine.run(name), name, Cost(900.0)) for name in "ax")
    second = jobs.start("b", engine.run("b"), "b")
    until(lambda: engine.order == ["a"])

    async def watch():
        seen = []
        async for news in follow(second, line):
            seen.append(news)
            if news == LinePlace(2, 1800):
                asyncio.get_running_loop().call_later(0.2, jobs.forget, "x")  # what has not changed is not told again
            elif news == LinePlace(1, 900):
                engine.gates["a"].set()
            elif "b" in engine.gates:
                engine.gates["b"].set()
        return seen

    seen = asyncio.run(watch())
    assert [news for news in seen if isinstance(news, LinePlace)] == [LinePlace(2, 1800), LinePlace(1, 900)]
    assert seen[-1][-1].done == 3 and second.over and first.over and between.cancelled
