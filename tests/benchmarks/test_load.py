"""The page under visitors who press Run at once, leave, read slowly and paste books; the engine is a fast stand-in."""

import asyncio
import hashlib
import socket
import threading
import time

import httpx
import pytest

from benchmarks.load_visitors import Plan, Refused, Visit, Visitor, read_slowly
from kvq_core.limits import limits
from kvq_core.pipeline.estimate import Estimate
from kvq_core.pipeline.timings import Cost
from kvq_core.record.events import Finished, LaneProgress, Loading, Prefill, Step, Summarizing
from kvq_core.record.store import open_store
from ui.layout import build_ui
from ui.server.embeds import Embeds
from ui.server.guard import app_kwargs
from ui.server.health import Health
from ui.server.request_size import MOST_BYTES
from ui.service.services import Services

VISITORS, STEPS = 6, 12


def estimate(spec) -> Estimate:
    return Estimate(20, 8192, Cost(0.5, 10**6), 10**9, [], (), 84)


class Engine:
    """Answers every prompt with itself, and counts what overlapped and what was begun."""

    def __init__(self, sample_run):
        self.sample_run = sample_run
        self.at_work = self.most = 0
        self.begun: list[str] = []

    def compare(self, spec, store, owner=""):
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        self.begun.append(spec.prompt)
        try:
            yield Loading(spec.model)
            yield Prefill(20, 20)
            for done in range(1, STEPS + 1):
                time.sleep(0.02)
                words = spec.prompt.split()[:done]
                yield Step(done, STEPS, words, [LaneProgress(x.label, words, [], [], None) for x in spec.lanes])
            yield Summarizing()
            id = hashlib.sha256(spec.prompt.encode()).hexdigest()[:16]
            record, arrays = self.sample_run(id=id, prompt=spec.prompt)
            yield Finished(record, arrays)
        finally:
            self.at_work -= 1


@pytest.fixture
def engine(sample_run) -> Engine:
    return Engine(sample_run)


@pytest.fixture(autouse=True)
def others() -> set[threading.Thread]:
    return at_work()


@pytest.fixture
def services(engine) -> Services:
    return Services(open_store(), engine.compare, estimate)


@pytest.fixture
def address(services):
    blocks = build_ui(services)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks.launch(
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        ssr_mode=False,
        enable_monitoring=False,
        app_kwargs=app_kwargs(Health(services), Embeds(services)),
        max_threads=limits().line + 100,
        _frontend=False,
    )
    yield f"http://127.0.0.1:{port}"
    blocks.close()


async def plan_of(address: str) -> Plan:
    async with httpx.AsyncClient(timeout=60) as http:
        return Plan((await http.get(f"{address}/config")).json())


def prompt_of(number: int) -> str:
    return f"Visitor {number} has a question of their own"


async def crowd(address: str, held: threading.Event) -> tuple[list[Visit], Visit, Visit]:
    plan, over = await plan_of(address), asyncio.Event()

    async def one(number: int, stop_at: str | None) -> Visit:
        visitor = await Visitor(address, plan).open()
        try:
            return await visitor.press_run(Visit(), stop_at, prompt=prompt_of(number))
        finally:
            await visitor.close()
            if stop_at == "Waiting":
                held.set()

    slow_page, book = await Visitor(address, plan).open(), Visitor(address, plan)
    slow = asyncio.create_task(read_slowly(address, plan, slow_page, over, prompt=prompt_of(99)))
    stops = [None, "Decoding", None, "Waiting", None, None]
    refused, *visits = await asyncio.gather(
        book.press_run(Visit(), prompt="x" * 10_000_000), *(one(number, stop) for number, stop in enumerate(stops))
    )
    over.set()
    ended = await slow
    await slow_page.close()
    await book.close()
    return visits, ended, refused


def at_work() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("run-")}


def quiet(services: Services, others: set[threading.Thread]) -> None:
    """Nothing is left at work, waiting or remembered; ``others``: threads of earlier tests, whose work nobody took."""
    until = time.monotonic() + 30
    while services.line.count() or services.jobs._waiting or at_work() - others:
        assert time.monotonic() < until, [thread.name for thread in threading.enumerate()]
        time.sleep(0.05)


def blocked(services: Services) -> threading.Event:
    """Somebody's work that holds the engine until the event is set."""
    held = threading.Event()
    services.jobs.watch(services.enter(lambda: (held.wait(200) for _ in range(1)), "someone", "someone").ticket)
    return held


@pytest.mark.slow
def test_everybody_is_answered_with_their_own_and_nothing_is_left(address, services, engine, others):
    visits, slow, refused = asyncio.run(crowd(address, blocked(services)))
    assert [visit.outcome for visit in visits] == ["done", "left", "done", "left", "done", "done"]
    assert slow.outcome == "done"
    assert refused.outcome == "refused" and "2000000" in refused.reason.replace(",", "")
    stayed = {visit.prompt for visit in visits if visit.outcome == "done"} | {slow.prompt}
    assert stayed <= set(engine.begun) <= stayed | {prompt_of(1), prompt_of(3)} and engine.most == 1
    for prompt in stayed:  # the records keeps the last four
        id = hashlib.sha256(prompt.encode()).hexdigest()[:16]
        if id in services.records._held:
            assert services.records.get(id)[0].spec["prompt"] == prompt
    quiet(services, others)


@pytest.mark.slow
def test_who_waits_is_told_the_place_and_the_wait(address, services, others):
    held = blocked(services)

    async def wait() -> Visit:
        visitor, visit = await Visitor(address, await plan_of(address)).open(), Visit()
        pressed = asyncio.create_task(visitor.press_run(visit, prompt="Is it my turn?"))
        while len(visit.seen) < 1:
            await asyncio.sleep(0.05)
        held.set()
        await pressed
        await visitor.close()
        return visit

    visit = asyncio.run(wait())
    assert visit.seen[0][1] == "Waiting for 1 run ahead of yours" and visit.outcome == "done"
    quiet(services, others)


@pytest.mark.slow
def test_a_full_line_says_so_and_a_request_too_large_is_not_read(address, services, monkeypatch, others):
    monkeypatch.setenv("KVQ_MAX_LINE", "1")
    held = blocked(services)

    async def ask() -> Visit:
        visitor = await Visitor(address, await plan_of(address)).open()
        with pytest.raises(Refused, match=f"413.*{MOST_BYTES / 1e6:g} MB"):
            await visitor.join(visitor.plan.submit, ["x" * (MOST_BYTES + 1)])
        visit = await visitor.press_run(Visit(), prompt="Is there room?")
        await visitor.close()
        return visit

    visit = asyncio.run(ask())
    held.set()
    assert visit.outcome == "refused" and "The line is full: 1 run of 1" in visit.reason
    quiet(services, others)


@pytest.mark.slow
def test_a_body_without_a_length_is_cut_off_as_well(address):
    def endless():
        for _ in range(MOST_BYTES // 10**6 + 2):
            yield b" " * 10**6

    plan = asyncio.run(plan_of(address))
    answer = httpx.post(f"{address}{plan.prefix}/queue/join", content=endless(), timeout=60)
    assert answer.status_code == 413 and "MB" in answer.json()["detail"]
