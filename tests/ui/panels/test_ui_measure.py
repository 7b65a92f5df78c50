"""The measure section: explained without a GPU; on a machine with one its states, and its table, from real measurements
of a tiny model."""

import asyncio

import gradio as gr
import pytest
import torch

from kvq_core.errors import ModelError
from kvq_core.machine.progress import Progress
from kvq_core.packed import MeasureRequest, measure
from kvq_core.packed.gpus import CHANGED, DecodeSpeed, MeasuredGpu, measured_gpus
from kvq_core.packed.lanes import SkippedLane, measure_spec
from kvq_core.packed.slow import chips, slow_methods
from kvq_core.record.store import open_store
from kvq_core.spec import ComparisonSpec, Lane
from tests.support.tiny_models import prompt_ids, tiny
from ui.html.escape import safe
from ui.panels import measure as panel
from ui.service.services import Services

STATUS, LIMITS, BUTTON, CANCEL, TABLE = range(5)


@pytest.fixture
def services(sample_run, monkeypatch):
    """Services whose records holds one run; ``services.measure`` is for the test to set."""
    services = Services(open_store(), None, None)
    monkeypatch.setattr(services.records, "get", lambda run: sample_run())
    return services


def updates(services, run="r1", limits=()):
    async def watch():
        shown = {"run": run}
        return [update async for update in panel.stream(shown, list(limits), "s/measure", "", services)]

    return asyncio.run(watch())


def measured(*asked):
    """The unquantized cache of a tiny model, then lanes."""
    model, ids, request = tiny("llama"), prompt_ids(100), MeasureRequest(new_tokens=3)
    return [measure(model, lane, ids, request) for lane in (None, *asked)]


def test_without_a_gpu_it_says_why_and_names_the_command():
    text = panel.explanation(None)
    assert "This machine has no GPU" in text and "bytes each packed cache holds" in text and panel.COMMAND in text
    assert "NVIDIA &lt;b&gt;" in panel.explanation("NVIDIA <b>")


def test_methods_that_do_not_pay_are_told_with_the_count_that_says_so():
    """On machines with a GPU and without; the figures are those of the file that ships."""
    slow = {each.method: each for each in slow_methods()}
    assert set(slow) == {"SVDq", "CommVQ", "QAQ"} and all(1 < each.least <= each.most for each in slow.values())
    for device in (None, "NVIDIA H100"):
        text = panel.explanation(device)
        assert "Derived by count, not measured" in text and "A100, H100, H200" in text
        for each in slow.values():
            assert f"{each.method} {each.least:.0f} to {each.most:.0f} times ({each.operation})" in text


def test_nothing_is_said_of_speed_that_was_not_counted(monkeypatch, tmp_path):
    assert slow_methods(tmp_path / "none.json") == chips(tmp_path / "none.json") == []
    monkeypatch.setattr(panel, "slow_methods", list)
    assert "do not pay" not in panel.explanation(None)


def test_without_a_gpu_what_was_measured_on_others_is_told_with_the_targets_that_were_missed():
    """The figures are those of the file that ships."""
    found = measured_gpus()
    text = panel.explanation(None)
    assert found and all(f"Measured on {device.device}" in text for device in found)
    for device in found:
        assert f"{device.held} are held, {device.open} open and {device.missed} missed" in text
        assert safe(device.versions) in text and (CHANGED in text) >= device.changed
        for row in device.rows:
            assert f'<th scope="row">{row.cache}</th><td>{row.batch}</td><td>{row.tokens_per_second:,.0f}</td>' in text
            assert f"<td>{row.peak_gb:.1f}</td></tr>" in text
    assert "Measured on" not in panel.explanation("NVIDIA H100")  # it measures itself


@pytest.mark.parametrize("changed", [False, True])
def test_what_is_told_of_another_gpu_is_escaped_and_says_whether_kernels_changed(changed, monkeypatch):
    rows = (DecodeSpeed("<i>", 1, 1234.4, None, 20.04), DecodeSpeed("KIVI", 1, 2000.0, 1.625, 10.0))
    device = MeasuredGpu("<b>X1", "2.11", "3.6", "aaaa", changed, "M", 4096, 1, 2, 3, rows)
    monkeypatch.setattr(panel, "measured_gpus", lambda: [device, device._replace(device="X2", rows=())])
    text = panel.elsewhere()
    assert "&lt;b&gt;X1" in text and "&lt;i&gt;</th><td>1</td><td>1,234</td><td>–</td><td>20.0</td>" in text
    assert "<td>2,000</td><td>1.62</td><td>10.0</td>" in text and "4,096 tokens" in text and "X2" not in text
    assert (CHANGED in text) is changed
    monkeypatch.setattr(panel, "measured_gpus", list)
    assert panel.elsewhere() == ""


def button_of(device, services, monkeypatch):
    monkeypatch.setattr(panel, "gpu", lambda: device)
    with gr.Blocks() as blocks:
        panel.create_measure(gr.State({"run": None}), services)
    return [block.elem_id for block in blocks.blocks.values() if isinstance(block, gr.Button)]


@pytest.mark.slow
def test_the_buttons_are_there_on_gpu_machines_only(services, monkeypatch):
    assert button_of(None, services, monkeypatch) == []
    assert button_of("A100", services, monkeypatch) == ["measure-run", "measure-cancel"]


def test_the_table_shows_what_was_measured_and_what_was_left_out():
    lane = Lane(label="<b>kivi</b>", method="kivi")
    found = [*measured(lane), SkippedLane("svdq", "before <RoPE>")]
    html = panel.table("r1", found, [])
    assert "&lt;b&gt;kivi" in html and "before &lt;RoPE&gt;" in html and "<b>" not in html
    share = 100 * found[1].cache_bytes / found[0].cache_bytes
    assert f"{share:.1f} %" in html and "Run r1: 100 prompt tokens, cpu" in html and "Longest" not in html


def test_the_table_has_the_limits_that_were_asked_for_and_no_share_without_the_unquantized_cache():
    whole, packed = measured(Lane(label="kivi", method="kivi"))
    packed = packed.model_copy(update={"limits": {"context": 65536}, "peak_decode_bytes": 5_000_000})
    html = panel.table("r1", [SkippedLane(whole.label, "memory ran out"), packed], ["context"])
    assert "Longest context" in html and "<td>65,536</td>" in html and "Largest batch" not in html
    assert "<td>–</td><td>5</td>" in html and "memory ran out" in html
    assert panel.table("r1", [SkippedLane("kivi", "why")], []) == "<ul><li>kivi: why</li></ul>"


def test_the_lanes_of_the_run_shown_are_measured_in_turn(services, sample_run):
    found = measured(Lane(label="<i>kivi", method="kivi"))

    def work(spec, request):
        assert spec.prompt == sample_run()[0].spec["prompt"]
        assert request.new_tokens == panel.NEW_TOKENS and request.limits == ("context", "batch")
        yield Progress("Loading the model")
        for index, one in enumerate(found):
            yield Progress(f"Measuring {one.label}", index, 2, "lanes")
            yield one.model_copy(update={"limits": {"context": 2048, "batch": 8}})

    services.measure = work
    first, *_, last = updates(services, limits=["batch", "context"])
    assert "Starting" in first[STATUS] and first[TABLE] == ""
    assert not first[LIMITS]["interactive"] and not first[BUTTON]["interactive"] and first[CANCEL]["visible"]
    assert "All lanes measured" in last[STATUS] and last[TABLE].count("<tr>") == 3 and "&lt;i&gt;kivi" in last[TABLE]
    assert last[LIMITS]["interactive"] and last[BUTTON]["value"] == "Measure" and not last[CANCEL]["visible"]
    assert services.line.count() == 0  # the ticket was given back


def test_it_can_be_cancelled_and_what_was_measured_stays(services):
    whole = measured()[0]

    def work(spec, request):
        yield whole
        services.jobs.forget("s/measure")  # somebody presses Cancel while the next lane is at work
        yield whole
        raise AssertionError("it went on")

    services.measure = work
    *_, last = updates(services)
    assert "Measuring cancelled" in last[STATUS] and last[TABLE].count("<tr>") == 2 and not last[CANCEL]["visible"]


@pytest.mark.parametrize(
    ("error", "words"), [(ModelError("not here <b>"), "not here &lt;b&gt;"), (RuntimeError("kaput"), "was logged")]
)
def test_what_cannot_be_measured_says_why_beside_what_was(error, words, services):
    whole = measured()[0]

    def work(spec, request):
        yield whole
        raise error

    services.measure = work
    *_, last = updates(services)
    assert "The lanes cannot be measured" in last[STATUS] and words in last[STATUS] and "kaput" not in last[STATUS]
    assert last[TABLE].count("<tr>") == 2 and last[BUTTON]["interactive"] and services.line.count() == 0


def test_without_a_run_nothing_is_measured(services):
    ((status, _, button, cancel, _),) = updates(services, run=None)
    assert "Run a comparison first" in status and button["interactive"] and not cancel["visible"]


def test_a_lane_that_does_not_fit_is_left_out_and_the_next_is_measured(monkeypatch, smollm):
    """Whatever runs out of memory, most likely the unquantized cache, the others are still measured."""

    def full(model, lane, ids, request):
        if lane is None or lane.label == "large":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return measure(model, lane, ids, request)

    monkeypatch.setattr("kvq_core.packed.lanes.measure", full)
    lanes = [Lane(label="large", method="kivi"), Lane(label="small", method="kivi")]
    spec = ComparisonSpec(prompt="Name a tree.", max_new_tokens=2, lanes=lanes)
    events = list(measure_spec(spec, MeasureRequest(new_tokens=3)))
    begun = [event for event in events if isinstance(event, Progress) and event.unit == "lanes"]
    found = [event for event in events if not isinstance(event, Progress)]
    assert [(event.doing, event.done, event.total) for event in begun] == [
        ("Measuring unquantized, float32", 0, 3),
        ("Measuring large", 1, 3),
        ("Measuring small", 2, 3),
    ]
    assert [isinstance(one, SkippedLane) for one in found] == [True, True, False] and "memory ran out" in found[
        0
    ].reason
