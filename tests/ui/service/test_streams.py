"""Updates that come late: none of them stands over what was said after it."""

import asyncio
import socket
import threading

import gradio as gr
import httpx
import pytest

from benchmarks.load_visitors import Plan, Visitor
from kvq_core.record.events import LaneProgress, Loading, Step
from kvq_core.record.store import open_store
from kvq_core.spec import parse_spec
from tests.browser.stand_in import Engine, estimate
from ui.layout import build_ui
from ui.panels.launch import stream
from ui.server.gradio_arguments import fit_values
from ui.service.services import Services

SPEC = parse_spec({"prompt": "Hello there.", "lanes": [{"method": "kivi"}]})
LANE = LaneProgress("KIVI", ["x"], [0.1], [True], None)


def test_a_run_that_was_replaced_says_nothing_more():
    """Run pressed again while it ran: its own end would stand over the cards of the run after it."""
    services = Services(open_store(), None, estimate)
    free = threading.Event()

    def work():
        yield Loading("model")
        yield Step(1, 2, ["x"], [LANE])
        assert free.wait(20)
        yield Step(2, 2, ["x", "x"], [LANE])

    async def watch() -> list:
        older = services.enter(work, "page", "someone")
        updates = stream({"id": older.ticket, "spec": SPEC.model_dump(mode="json")}, services)
        seen = [await anext(updates)]
        newer = services.enter(work, "page", "someone")
        free.set()
        seen += [update async for update in updates]
        assert not services.jobs.is_newest("page", older.ticket) and services.jobs.is_newest("page", newer.ticket)
        services.jobs.forget("page")
        return seen

    (only,) = asyncio.run(watch())
    assert "Cancelled" not in str(only)


@pytest.mark.slow
def test_the_last_update_of_a_stream_changes_nothing():
    """Gradio sends it once more when the stream ends, which may be after the run is shown."""
    blocks = build_ui(Services(open_store(), Engine().compare, estimate))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks.launch(server_port=port, prevent_thread_lock=True, quiet=True, ssr_mode=False, _frontend=False)

    async def run() -> tuple[list, list, list]:
        async with httpx.AsyncClient(timeout=60) as http:
            plan = Plan((await http.get(f"http://127.0.0.1:{port}/config")).json())
        visitor, seen = await Visitor(f"http://127.0.0.1:{port}", plan).open(), []
        pressed = await visitor.call(plan.submit, plan.form(plan.submit, visitor.filled, prompt="Is it over?"))
        watched = await visitor.call(plan.watch, [None], seen.append)
        await visitor.close()
        return pressed, watched, seen

    try:
        pressed, watched, seen = asyncio.run(run())
    finally:
        blocks.close()
    assert "Done" in str(seen)
    buttons = watched[1:3]  # said again: a browser that is behind would leave them out
    assert [button.get("interactive", button.get("visible")) for button in buttons] == [True, False]
    for value in [*pressed, watched[0], *watched[3:]]:
        assert value is None or (value["__type__"] == "update" and "value" not in value), value


@pytest.mark.parametrize(
    "part, held, fits",
    [
        (gr.Dropdown([("a", 0), ("b", 1)]), 5, None),
        (gr.Dropdown([]), 0, None),
        (gr.Dropdown(["a"]), "a", "a"),
        (gr.Dropdown(["a"], allow_custom_value=True), "b", "b"),
        (gr.Slider(1, 16), 64, 16),
        (gr.Slider(1, 16), 5, 5),
        (gr.Slider(1, 16), "x", "x"),
        (gr.Number(minimum=1), 0, 0),
    ],
)
def test_what_the_run_before_offered_is_nothing_of_this_one(part, held, fits):
    assert fit_values([part], [held]) == [fits]
    assert fit_values([part], [held, held]) == [held, held] and fit_values([part], None) is None
