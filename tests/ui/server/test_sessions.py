"""What a served page leaves behind: small states for an hour, and nothing of what it showed."""

import asyncio
import socket
import time
from datetime import datetime, timedelta

import httpx
import pytest

from app import launch
from benchmarks.load_visitors import Plan, Visit, Visitor
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
from ui.server.gradio_sessions import KEEP
from ui.server.health import Health
from ui.service.services import Services


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The page, its address, and the id of a run in its store."""
    store = open_store(str(tmp_path_factory.mktemp("served")))
    record, arrays = make_sample()
    store.save(record, arrays)
    services = Services(store, None, None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks = launch(services, Health(services), "127.0.0.1", port)
    yield blocks, f"http://127.0.0.1:{port}", record.id
    blocks.close()


async def plan_of(address: str) -> Plan:
    async with httpx.AsyncClient(timeout=60) as http:
        return Plan((await http.get(f"{address}/config")).json())


async def visit(address: str, run: str) -> tuple[str, str]:
    """Open a run's link, look at it, close the tab: the page's session, and the run its share link named."""
    visitor = Visitor(address, await plan_of(address), run=run)
    await visitor.open()
    seen = await visitor.see(Visit())
    await visitor.close()
    return visitor.session, seen.run


@pytest.mark.slow
def test_of_a_page_no_shown_values_are_held_and_its_states_work(served):
    blocks, address, run = served
    session, seen = asyncio.run(visit(address, run))
    held = blocks.app.state_holder.session_data[session]
    assert seen == run, "what one event put into a state, the next one reads"
    assert not held.config_values and list(held.components) == []
    assert {"run": run, "ticket": "link"} in held.state_data.values()


@pytest.mark.slow
def test_of_a_call_without_a_session_no_answer_is_held(served):
    blocks, address, run = served
    with httpx.Client(base_url=f"{address}{asyncio.run(plan_of(address)).prefix}", timeout=60) as http:
        event = http.post("/call/run", json={"data": [run, ""]}).json()["event_id"]
        assert f'"id": "{run}"' in http.get(f"/call/run/{event}").text
    assert not any(session.config_values for session in blocks.app.state_holder.session_data.values())


@pytest.mark.slow
def test_answers_nobody_fetches_make_way_and_those_that_are_fetched_come(served, monkeypatch):
    blocks, address, run = served
    monkeypatch.setattr("ui.server.gradio_answers.READING_S", 0.5)
    monkeypatch.setattr("ui.server.gradio_answers.UNREAD", 2)
    mail = blocks._queue.pending_messages_per_session
    with httpx.Client(base_url=f"{address}{asyncio.run(plan_of(address)).prefix}", timeout=60) as http:
        events = [http.post("/call/run", json={"data": [run, ""]}).json()["event_id"] for _ in range(12)]
        until = time.monotonic() + 60
        while events[0] in mail or blocks._queue.event_ids_to_events:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert "event: error" in http.get(f"/call/run/{events[0]}").text
        event = http.post("/call/run", json={"data": [run, ""]}).json()["event_id"]
        assert f'"id": "{run}"' in http.get(f"/call/run/{event}").text


@pytest.mark.slow
def test_a_page_holds_what_it_changed_and_once_closed_what_its_events_ask_for(served):
    blocks, address, run = served
    holder, offered = blocks.app.state_holder, blocks.default_config.blocks
    asked = {block._id for fn in blocks.fns.values() for block in fn.inputs}

    async def look() -> None:
        visitor = Visitor(address, await plan_of(address), run=run)
        await visitor.open()
        await visitor.see(Visit())
        page = holder.session_data[visitor.session]
        changed = page.blocks_config.blocks.maps[0]
        written = set(changed)
        assert written - asked and written & asked and any(changed[id] is not offered[id] for id in written & asked)
        assert all(holder["another page"].blocks_config.blocks[id] is part for id, part in offered.items())
        holder.delete_all_expired_state()
        assert set(changed) == written, "an open page goes on with all of it"
        await visitor.close()
        until = time.monotonic() + 60
        while not page.is_closed:
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        holder.delete_all_expired_state()
        assert set(changed) == written & asked
        left = written & set(offered) - asked  # Gradio keeps what changes twice under an id that no page has
        assert all(page[id] is offered[id] for id in left if not offered[id].stateful)

    asyncio.run(look())


@pytest.mark.slow
def test_a_closed_page_is_forgotten_after_a_while_and_an_open_one_is_not(served):
    blocks, address, run = served
    holder = blocks.app.state_holder
    closed, _ = asyncio.run(visit(address, run))
    holder["still open"].is_closed = False
    holder["closed now"].is_closed = True
    holder[closed].is_closed = True
    for id in (closed, "still open"):
        holder.time_last_used[id] = datetime.now() - KEEP - timedelta(seconds=1)
    holder.delete_all_expired_state()
    assert closed not in holder.session_data and closed not in holder.time_last_used
    assert {"still open", "closed now"} <= set(holder.session_data)
