"""The measure section: explained without a GPU, and its table, from real measurements of a tiny model."""

import asyncio

from kvq_core.errors import ModelError
from kvq_core.measuring import LeftOut
from kvq_core.packed import Request, measure
from kvq_core.spec import Lane
from tests.tiny_models import prompt_ids, tiny
from ui.panels import measure as panel
from ui.services import Services


def test_without_a_gpu_it_says_why_and_names_the_command():
    text = panel.explained(None)
    assert "This machine has no GPU" in text and "bytes each packed cache holds" in text and panel.COMMAND in text
    assert "NVIDIA &lt;b&gt;" in panel.explained("NVIDIA <b>")


def test_the_table_shows_what_was_measured_and_what_was_left_out():
    lane = Lane(label="<b>kivi</b>", method="kivi")
    model, ids, request = tiny("llama"), prompt_ids(100), Request(new_tokens=3)
    found = [measure(model, None, ids, request), measure(model, lane, ids, request), LeftOut("svdq", "before <RoPE>")]
    html = panel.table(found)
    assert "&lt;b&gt;kivi" in html and "before &lt;RoPE&gt;" in html and "<b>" not in html
    assert f"{found[1].cache_bytes / found[0].cache_bytes:.1%}" in html and "100 prompt tokens, cpu" in html


def test_the_lanes_of_the_run_shown_are_measured_in_turn(sample_run, tmp_path, monkeypatch):
    from kvq_core.store import open_store

    services = Services(open_store(), None, None)

    def updates(shown):
        async def watch():
            return [update async for update in panel.stream(shown, "s/measure", "", services)]

        return asyncio.run(watch())

    assert "Run a comparison first" in updates({"run": None})[0]
    record, arrays = sample_run()
    monkeypatch.setattr(services.shelf, "get", lambda run: (record, arrays))

    def refuse(spec, request):
        assert spec.prompt == record.spec["prompt"] and request.new_tokens == panel.NEW_TOKENS
        raise ModelError("not here <b>")
        yield

    services.measure = refuse
    *_, last = updates({"run": record.id})
    assert "The lanes cannot be measured" in last and "not here &lt;b&gt;" in last
    assert services.desk.held() == 0  # the ticket was given back
