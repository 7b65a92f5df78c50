"""Runs that nobody waits for any more, and runs that stand aside for others."""

import threading
from concurrent.futures import ThreadPoolExecutor

from kvq_core.record.events import Step
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from tests.browser.stand_in import Engine as Standing
from tests.browser.stand_in import estimate
from tests.support.gated_runs import until
from ui.service import jobs as jobs_module
from ui.service.jobs import Jobs
from ui.service.line import WaitingLine
from ui.service.services import Services


def test_work_nobody_looks_at_is_dropped(engine, monkeypatch):
    """Its page was closed without a word, or a client pressed Run and went away."""
    monkeypatch.setattr("ui.service.line.CHECK_S", 0.02)
    line = WaitingLine()
    jobs = Jobs(line)
    running, waiting, looked_at = (jobs.start(name, engine.run(name, steps=10**6)) for name in "abc")
    until(lambda: engine.order == ["a"])
    running._looked -= jobs_module.PATIENCE_S
    waiting._looked -= jobs_module.PATIENCE_S
    until(lambda: waiting.over)
    assert waiting.cancelled and line.count() == 2 and not looked_at.over
    engine.gates["a"].set()  # at work, and noticed at its next step
    until(lambda: running.over)
    assert running.cancelled
    until(lambda: engine.order == ["a", "c"] and set(jobs._waiting) == {looked_at.ticket})
    jobs.forget("c")
    engine.gates["c"].set()
    until(lambda: looked_at.over and line.count() == 0)
    names = {f"run-{job.ticket}" for job in (running, waiting, looked_at)}
    until(lambda: not names & {thread.name for thread in threading.enumerate()})


def test_what_a_page_asked_for_as_it_was_closed_is_dropped(tmp_path):
    looked, closed = threading.Event(), threading.Event()

    def slow(spec):  # the press waits, as for a model
        looked.set()
        assert closed.wait(20)
        return estimate(spec)

    services = Services(open_store(str(tmp_path)), Standing().compare, slow)
    spec = parse_spec({"prompt": "A tree.", "lanes": [{"method": "kivi"}]})
    with ThreadPoolExecutor(1) as apart:
        pressed = apart.submit(services.submit, spec, "page", "")
        assert looked.wait(20)
        services.jobs.leave("page")
        closed.set()
        job = pressed.result()
    until(lambda: job.over)
    assert job.cancelled and services.line.count() == 0
    again = services.submit(spec, "page", "")  # its connection is back, and Run is pressed anew
    services.jobs.watch(again.ticket)
    until(lambda: again.over)
    assert not again.cancelled and again.error is None


def test_work_that_was_never_watched_is_waited_for_less_long(engine, monkeypatch):
    monkeypatch.setattr("ui.service.line.CHECK_S", 0.02)
    jobs = Jobs(WaitingLine())
    _, unseen, watched = (jobs.start(name, engine.run(name)) for name in "abc")
    jobs.watch(watched.ticket)
    for job in (unseen, watched):
        job._looked -= jobs_module.UNSEEN_S
    until(lambda: unseen.over)
    assert unseen.cancelled and not watched.over
    for name in "ac":
        jobs.forget(name)
        engine.gates[name].set()
    until(lambda: watched.over)


def test_what_finished_unseen_is_not_kept_for_ever(engine, monkeypatch):
    monkeypatch.setattr(jobs_module, "PATIENCE_S", 0.2)
    jobs = Jobs(WaitingLine())
    job = jobs.start("a", engine.run("a"))
    until(lambda: "a" in engine.gates)
    engine.gates["a"].set()
    until(lambda: job.over and not jobs._waiting)


def test_what_stands_aside_gives_way_to_others_and_begins_anew(engine):
    line = WaitingLine()
    jobs = Jobs(line)
    tried = jobs.start("a/acting", engine.run("tried"), "one", aside=True)
    until(lambda: engine.order == ["tried"])
    run = jobs.start("b", engine.run("run"), "two")
    assert line.place(run.ticket).ahead == 0 and line.place(tried.ticket).ahead == 1
    engine.gates["tried"].set()  # the step it was in ends, and no other begins
    until(lambda: engine.order == ["tried", "run"])
    assert not tried.over and not tried.began and engine.most == 1
    later = jobs.start("a", engine.run("later"), "one")
    engine.gates["run"].set()
    until(lambda: engine.order[2:] == ["later"])
    engine.gates["later"].set()
    until(lambda: engine.order[3:] == ["tried"])
    engine.gates["tried"].set()
    until(lambda: tried.over)
    assert tried.error is None and not tried.cancelled and later.over and line.count() == 0
    assert [type(event) for event in tried.news()][-1] is Step


def test_what_stands_aside_waits_for_nobody_who_does_so_too_and_is_cancelled_while_it_waits(engine):
    line = WaitingLine()
    jobs = Jobs(line)
    first, second = (jobs.start(name, engine.run(name), name, aside=True) for name in ("a", "b"))
    until(lambda: engine.order == ["a"])
    engine.gates["a"].set()
    until(lambda: first.over and engine.order == ["a", "b"])
    run = jobs.start("c", engine.run("c"))
    engine.gates["b"].set()
    until(lambda: engine.order[-1] == "c")
    jobs.forget("b")
    engine.gates["c"].set()
    until(lambda: run.over and second.over)
    assert second.cancelled and engine.order == ["a", "b", "c"]
