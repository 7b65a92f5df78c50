"""Measure the lanes of the run shown, one at a time with packed caches: on GPU machines, explained elsewhere."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import astuple
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.machine.progress import Progress
from kvq_core.packed.gpus import DecodeSpeed, MeasuredGpu, measured_gpus
from kvq_core.packed.lanes import LaneMeasurement, MeasureRequest, SkippedLane, gpu, unquantized_bytes
from kvq_core.packed.slow import chips, slow_methods
from kvq_core.spec import parse_spec
from ui.html.escape import safe
from ui.html.numbers import ABSENT, percent
from ui.html.status import line, notice, place_line, progress_line
from ui.panels.job_panel import JobPanel
from ui.service.jobs import Job
from ui.service.services import SWIFT, Services, visitor
from ui.service.streams import with_empty_end

COMMAND = "python -m kvq_core measure --preset first-look"
HEAD_ELSEWHERE = ("Cache", "Batch", "Tokens a second", "Times fp16", "Peak, GB")
HEAD = ("Lane", "Path", "ms a token", "Cache, MB", "Of unquantized", "Peak, MB")
LIMITS = {"context": "Longest context, tokens", "batch": "Largest batch, rows"}
NEW_TOKENS = 64
MEASURING = JobPanel(
    "measuring",
    "Measure",
    "Measuring",
    ("Measuring cancelled", "warn", None, "What was measured stays below."),
    inputs=1,
)
STOPPING = ("Cancelling", "busy", None, "The lane at work is finished first.")


def create_measure(shown: gr.State, services: Services) -> gr.Accordion:
    """A closed section. It measures in the line of the runs, since both need the machine to themselves."""
    with gr.Accordion("Speed and memory with packed caches", open=False, elem_id="measure") as section:
        found = gpu()
        gr.HTML(explanation(found))
        if found is not None:
            choices = [(title, what) for what, title in LIMITS.items()]
            limits = gr.CheckboxGroup(
                choices, value=[], label="Also find the most that fits into memory", elem_id="measure-limits"
            )
            button = gr.Button("Measure", variant="primary", elem_id="measure-run")
            cancel = gr.Button("Cancel measuring", visible=False, elem_id="measure-cancel")
            status, lanes = gr.HTML("", elem_id="measure-status"), gr.HTML("", elem_id="measure-told")

            async def work(shown: dict[str, Any], limits: list[str], request: gr.Request) -> AsyncGenerator[list[Any]]:
                async for update in with_empty_end(
                    stream(shown, limits, MEASURING.session(request), visitor(request), services)
                ):
                    yield update

            def give_up(request: gr.Request) -> str:
                services.jobs.forget(MEASURING.session(request))
                return line(*STOPPING)

            button.click(work, [shown, limits], [status, limits, button, cancel, lanes], **SWIFT)
            cancel.click(give_up, None, status, **SWIFT)
    return section


def explanation(device: str | None) -> str:
    """What is measured, and where that is possible."""
    what = (
        "A run shows what quantization does to the answers, on dequantized copies. Here each lane runs alone with its "
        "cache in packed form only, and is timed and weighed."
    )
    if device is not None:
        return f'<p>{what}</p><p class="muted">{safe(device)}, {NEW_TOKENS} new tokens a lane.</p>{not_paying()}'
    why = (
        "This machine has no GPU. The plain-torch reference would run, which dequantizes the cache at every step: its "
        "times would say nothing about GPUs, and there is no GPU memory to watch. What a command can tell here is how "
        "many bytes each packed cache holds:"
    )
    return f"<p>{what}</p><p>{why}</p><p><code>{safe(COMMAND)}</code></p>{elsewhere()}{not_paying()}"


def elsewhere() -> str:
    """What GPUs were measured to do with whole models; nothing where none was."""
    return "".join(_elsewhere(found) for found in measured_gpus() if found.rows)


def _elsewhere(found: MeasuredGpu) -> str:
    said = f"Measured on {found.device}. {found.summary} The targets stand in docs/gpu.md."
    head = "".join(f'<th scope="col">{title}</th>' for title in HEAD_ELSEWHERE)
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(map(_decoded, found.rows))}</tbody>"
    return (
        f'<p>{safe(said)}</p><div class="scroll" tabindex="0"><table class="plain">{table}</table></div>'
        f'<p class="muted">{safe(found.versions)}; the peak includes the weights.</p>'
    )


def _decoded(row: DecodeSpeed) -> str:
    times = ABSENT if row.times is None else f"{row.times:.2f}"
    return _cells(row.cache, (str(row.batch), f"{row.tokens_per_second:,.0f}", times, f"{row.peak_gb:.1f}"))


def not_paying() -> str:
    """Which methods, as published, save memory and no time; nothing where it was not counted."""
    if not (slow := slow_methods()):
        return ""
    each = "; ".join(f"{m.method} {m.least:.0f} to {m.most:.0f} times ({m.operation})" for m in slow)
    return (
        f'<p id="measure-slow">As published, {safe(", ".join(m.method for m in slow))} save memory and do not pay in '
        f"time on GPUs such as {safe(', '.join(chips()))}: reading such a cache takes longer than fp16 attention takes "
        f"to read the original. {safe(each)}. <em>Derived by count, not measured</em>: instructions that the compiled "
        "kernels need for an element, against what a GPU has time for.</p>"
    )


async def stream(
    shown: dict[str, Any], limits: list[str], session: str, visitor: str, services: Services
) -> AsyncGenerator[list[Any]]:
    """Updates of status, limits, Measure, Cancel and table while the lanes of the run shown are measured."""
    if not shown.get("run"):
        yield [line("Run a comparison first, then measure it", "warn"), *MEASURING.idle(), gr.skip()]
        return
    try:
        job = _begin(shown["run"], limits, session, visitor, services)
    except KvqError as error:
        yield [notice("The lanes cannot be measured", str(error)), *MEASURING.idle(), gr.skip()]
        return
    yield [place_line(*astuple(services.line.place(job.ticket))), *MEASURING.busy(), ""]
    found: list[LaneMeasurement | SkippedLane] = []

    def show(news: list[Any]) -> Iterator[list[Any]]:
        found.extend(event for event in news if isinstance(event, LaneMeasurement | SkippedLane))
        status = progress_line(news[-1]) if isinstance(news[-1], Progress) else gr.skip()
        yield [status, *MEASURING.busy(), table(shown["run"], found, limits)]

    async for update in MEASURING.updates(job, services, 1, show):
        yield update
    if not job.replaced:
        yield [_end(job), *MEASURING.idle(), table(shown["run"], found, limits)]


def _begin(run: str, limits: list[str], session: str, visitor: str, services: Services) -> Job:
    """Put the measurement of a run's lanes in line. Raises KvqError where there is no room, or no such run."""
    record, _ = services.records.get(run)
    request = MeasureRequest(new_tokens=NEW_TOKENS, limits=tuple(what for what in LIMITS if what in limits))
    job = services.enter(partial(services.measure, parse_spec(record.spec), request), session, visitor)
    services.jobs.watch(job.ticket)  # this page follows it
    return job


def _end(job: Job) -> str:
    """How it ended."""
    if job.cancelled:
        return MEASURING.cancelled_line()
    error = MEASURING.failure(job)
    return line("All lanes measured", "done") if error is None else notice("The lanes cannot be measured", error)


def table(run: str, found: list[LaneMeasurement | SkippedLane], limits: list[str]) -> str:
    """Measured lanes of a run as rows, the rest with their reasons."""
    measured = [m for m in found if isinstance(m, LaneMeasurement)]
    out = "".join(f"<li>{safe(f.label)}: {safe(f.reason)}</li>" for f in found if isinstance(f, SkippedLane))
    left_out = f"<ul>{out}</ul>" if out else ""
    if not measured:
        return left_out
    asked = [what for what in LIMITS if what in limits]
    head = "".join(f'<th scope="col">{title}</th>' for title in (*HEAD, *(LIMITS[what] for what in asked)))
    whole = unquantized_bytes(measured)
    rows = "".join(_row(m, whole, asked) for m in measured)
    shape = f"Run {run}: {measured[0].prompt_tokens:,} prompt tokens, {measured[0].device}, {measured[0].dtype}"
    table = f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div><p class="muted">{safe(shape)}</p>{left_out}'


def _row(m: LaneMeasurement, whole: int | None, asked: list[Any]) -> str:
    peak = ABSENT if m.peak_decode_bytes is None else f"{m.peak_decode_bytes / 1e6:,.0f}"
    share = percent(None if whole is None else m.cache_bytes / whole, 1)
    most = (f"{m.limits[what]:,}" for what in asked)
    cells = (m.path, f"{m.ms_per_token:.2f}", f"{m.cache_bytes / 1e6:,.2f}", share, peak, *most)
    return _cells(m.label, cells)


def _cells(title: str, cells: tuple[str, ...]) -> str:
    """A row of a table."""
    return f'<tr><th scope="row">{safe(title)}</th>' + "".join(f"<td>{safe(cell)}</td>" for cell in cells) + "</tr>"
