"""Handlers of the page: anybody can call any of them, first and with anything; a run of an earlier version is shown."""

import asyncio
import inspect

import gradio as gr
import pytest
from gradio.state_holder import SessionState
from starlette.requests import Request

from kvq_core.record.events import Loading
from kvq_core.record.store import open_store
from tests.support.ui_record_factory import make_run
from ui.html.status import unexpected_error
from ui.layout import build_ui
from ui.service.services import Services


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    store = open_store(str(tmp_path_factory.mktemp("store")))
    services = Services(store, lambda spec, store: iter([Loading("x")]), None)
    made = build_ui(services)
    made.services = services
    return made


def request() -> gr.Request:
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/", "query_string": b"", "headers": []}
    return gr.Request(Request({**scope, "server": ("127.0.0.1", 7860)}), session_hash="s")


def call(page, fn, values):
    """What the server does with a request for a handler, up to its first answer."""
    return asyncio.run(page.process_api(fn, values, state=SessionState(page), request=request()))


def first(component):
    return None if isinstance(component, gr.State) else getattr(component, "value", None)


@pytest.mark.long("fuzz", sample=2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["as at first", "nothing", "a text", "a number", "a list"])
@pytest.mark.real_model
def test_a_handler_that_is_called_first_answers_or_refuses_in_a_sentence(page, logged, kind):
    value = {"nothing": None, "a text": "x", "a number": -7, "a list": [[]]}
    for fn in page.fns.values():
        if fn.fn is None or fn.api_visibility != "private":
            continue
        values = [None if isinstance(c, gr.State) else value.get(kind, first(c)) for c in fn.inputs]
        try:
            call(page, fn, values)
        except gr.Error as refused:
            assert not refused.print_exception and len(str(refused)) < 600, fn.name
    if kind in ("as at first", "nothing"):
        assert "kvq: request failed" not in logged, "what a page that has just been opened can send is no error"


@pytest.mark.slow
def test_an_error_nobody_thought_of_is_logged_and_told_without_a_trace(page, monkeypatch, logged):
    fn = next(fn for fn in page.fns.values() if fn.name == "watch")

    async def fails(*_):
        raise ZeroDivisionError("secret")
        yield

    monkeypatch.setattr(fn, "fn", fails)
    with pytest.raises(gr.Error) as caught:
        call(page, fn, [None] * len(fn.inputs))
    assert (
        unexpected_error() in str(caught.value) and not caught.value.print_exception and "kvq: request failed" in logged
    )


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"knobs": {"lost": 1}}, {"method": "lost", "knobs": {"bits": 2}}], ids=repr)
def test_a_run_whose_method_lost_a_knob_or_is_gone_is_shown(page, changes):
    record, arrays = make_run(2)
    spec = {**record.spec, "lanes": [{**record.spec["lanes"][0], **changes}, record.spec["lanes"][1]]}
    lanes = [record.lanes[0].model_copy(update=changes), record.lanes[1]]
    page.services.records.put(record.model_copy(update={"spec": spec, "lanes": lanes}), arrays)
    shown = {"run": record.id}
    asked = [fn for fn in page.fns.values() if fn.name in ("show", "draw", "fill", "remember", "compare_runs")]
    assert {fn.name for fn in asked} >= {"show", "draw", "fill"}
    for fn in asked:
        state = SessionState(page)
        values = [first(component) for component in fn.inputs]
        for component in fn.inputs:
            if isinstance(component, gr.State):
                state[component._id] = shown if component.value == {"run": None} else component.value
        found = asyncio.run(finished(page, fn, values, state))
        assert found, fn.name


async def finished(page, fn, values, state):
    """All answers of a handler."""
    answers, iterator = [], None
    while True:
        said = await page.process_api(fn, values, state=state, request=request(), iterator=iterator)
        answers.append(said["data"])
        iterator = said.get("iterator")
        if iterator is None or not inspect.isgeneratorfunction(fn.fn):
            return answers


@pytest.mark.slow
def test_a_choice_during_the_answer_to_the_one_before_is_asked_for(page):
    """Gradio passes over it by default, and the page would show what was left."""
    choosing = [fn for fn in page.fns.values() if fn.fn and any(event == "input" for _, event in fn.targets)]
    assert len(choosing) >= 6 and {fn.trigger_mode for fn in choosing} <= {"always_last", "multiple"}
