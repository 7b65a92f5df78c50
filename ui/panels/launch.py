"""The estimate, Run and Cancel, and the run itself as a stream of updates."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.logs import log_error
from kvq_core.pipeline.estimate import Estimate, loading_progress
from kvq_core.pipeline.timings import RemainingTime
from kvq_core.record.events import Finished, Step
from kvq_core.spec import ComparisonSpec, parse_spec
from ui.form.lanes_panel import LanesPanel
from ui.form.setup_panel import Setup
from ui.form.values import FIELDS, to_comparison
from ui.html.escape import safe
from ui.html.numbers import plural, seconds, size
from ui.html.status import event_line, line, notice, place_line
from ui.panels.answers import AnswerCards, stage_html
from ui.panels.job_panel import JobPanel
from ui.panels.live_cards import LiveCards, Pacer
from ui.service.admission import Quote
from ui.service.services import QUIET, SWIFT, Services, visitor
from ui.service.streams import with_empty_end

RUN = JobPanel("run", "Run", "Running", ("Cancelled", "warn", None, "What had arrived stays below; nothing was saved."))
MOST_TOKENS = next(rule.le for rule in ComparisonSpec.model_fields["max_new_tokens"].metadata if hasattr(rule, "le"))
WORKERS = 4  # presses of Run looked at together: each may wait for the model to be loaded, and Gradio's threads are few
SOON_S = 1.0  # after which a press of Run that is still looked at is told why
NO_TICKET: dict[str, Any] = {"id": None}
# The answers come into view when Run is pressed; at once, for what arrives meanwhile would end a smooth way there.
TO_ANSWERS = """() => setTimeout(() => {
  const top = document.getElementById("right").getBoundingClientRect().top;
  const above = document.querySelector("header").offsetHeight + 12;
  if (top < 0 || top > innerHeight / 2) scrollBy({top: top - above, behavior: "instant"});
}, 300)"""


@dataclass
class LaunchPanel:
    estimate: gr.HTML
    notice: gr.HTML
    run: gr.Button
    cancel: gr.Button
    ticket: gr.State


def create_launch() -> LaunchPanel:
    with gr.Column(elem_classes=["card"], elem_id="launch"):
        estimate = gr.HTML('<p class="muted">Counting tokens</p>', elem_id="estimate")
        message = gr.HTML("", elem_id="notice")
        run = gr.Button("Run", variant="primary", elem_id="run")
        cancel = gr.Button("Cancel", visible=False, elem_id="cancel")
    return LaunchPanel(estimate, message, run, cancel, gr.State(NO_TICKET))


def wire_estimate(panel: LaunchPanel, setup: Setup, lanes: LanesPanel, services: Services) -> None:
    """Estimate again whenever the form changes; while one is on its way only the newest change counts.

    Where Run was refused, the notice of that follows the form too: it goes when nothing is wrong any more.
    """

    def handler(said: Any, *values: Any) -> list[Any]:
        *fields, form_lanes, rest = values
        try:
            spec = to_comparison(dict(zip(FIELDS, fields, strict=True)), form_lanes, rest)
            quote = services.admission.quote(spec)
            now = notice(RUN.refused, quote.refusal) if quote.refusal else ""
            return [
                estimate_html(quote, spec.max_new_tokens if spec.continuation is None else None),
                now if said else gr.skip(),
            ]
        except KvqError as error:
            refused = f'<p class="warning refused">{safe(error)}</p>'
            return [refused, notice(RUN.refused, str(error)) if said else gr.skip()]
        except Exception as error:
            log_error("estimate failed", error)
            return ['<p class="muted">No estimate.</p>', gr.skip()]

    triggers = [setup[name].change for name in FIELDS] + [lanes.lanes.change]
    gr.on(
        triggers,
        handler,
        [panel.notice, *setup.fields, lanes.lanes, setup.rest],
        [panel.estimate, panel.notice],
        **QUIET,
        trigger_mode="always_last",
        concurrency_limit=2,
    )


def estimate_html(quote: Quote, new_tokens: int | None = None) -> str:
    """Tokens, time, memory; why it may not run here, what would not be quantized, and what makes the run slow.
    ``new_tokens``: those that are asked for, None of a continuation."""
    found = quote.estimate
    time = "time not measured yet" if found.cost.seconds is None else f"about {seconds(found.cost.seconds)}"
    several = f"{found.batches} batches on one prefill"
    rows = f"{plural(len(found.lanes), 'lane')}, {several if found.batches > 1 else 'one pass'}"
    facts = (f"{found.prompt_tokens:,} prompt tokens", time, size(found.bytes), rows)
    said = [quote.remark, *(lane.warning for lane in found.lanes if lane.starts_at is None), *found.notes]
    refused = f'<p class="error refused">{safe(quote.refusal)}</p>' if quote.refusal else ""
    warnings = "".join(f'<p class="warning">{safe(text)}</p>' for text in said if text) + _too_short(found, new_tokens)
    return f'<p class="facts">{"".join(f"<span>{safe(fact)}</span>" for fact in facts)}</p>{refused}{warnings}'


def _too_short(found: Estimate, new_tokens: int | None) -> str:
    """The lanes that would quantize nothing, in one line, with the length at which all of them would."""
    short = [lane for lane in found.lanes if lane.starts_at is not None]
    if not short:
        return ""
    needed = max(lane.starts_at or 0 for lane in short)
    one = len(short) == 1
    who = short[0].label if one else f"{len(short)} formats"
    said = (
        f"{who} would quantize nothing: {'its' if one else 'their'} full-precision windows hold all "
        f"{short[0].total_tokens:,} tokens. It takes {needed:,}."
    )
    more = (new_tokens or 0) + needed - short[0].total_tokens
    offers = new_tokens is not None and more <= MOST_TOKENS and found.prompt_tokens + more <= found.context
    button = f'<button type="button" class="plain-button" data-new-tokens="{more}">Generate {more:,} tokens</button>'
    return f'<p class="warning">{safe(said)}</p>{button if offers else ""}'


def wire_run(
    panel: LaunchPanel,
    setup: Setup,
    lanes: LanesPanel,
    cards: AnswerCards,
    status: gr.HTML,
    shown: gr.State,
    gone: dict[Any, Any],
    on_page: gr.State,
    services: Services,
) -> None:
    """Run: admit and put in line, then show how far the run is until it is over. ``gone``: updates of what is of the
    run before. They come with the cards: on their own they could come after a run that is over at once."""
    workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="kvq-admission")

    async def press(request: gr.Request, *values: Any) -> AsyncGenerator[list[Any]]:
        *fields, form_lanes, rest, on_page = values
        rest_of_them = [gr.skip()] * (len(submitted) - 5)
        status: Any = gr.skip()
        told = None
        try:
            spec = to_comparison(dict(zip(FIELDS, fields, strict=True)), form_lanes, rest)
            yield ["", gr.skip(), gr.skip(), gr.update(value="Checking", interactive=False), gr.skip(), *rest_of_them]
            admit = partial(copy_context().run, services.submit, spec, RUN.session(request), visitor(request))
            admitted = asyncio.get_running_loop().run_in_executor(workers, admit)
            while not (await asyncio.wait([admitted], timeout=SOON_S))[0]:
                if told != (told := event_line(loading_progress(spec.model))):
                    status = ""
                    yield [gr.skip(), gr.skip(), told, gr.skip(), gr.skip(), *rest_of_them]
            job = await admitted
        except Exception as error:
            yield [RUN.refusal(error), gr.skip(), status, *RUN.idle(), *rest_of_them]
            return
        on_page.shown = {"run": None}  # none is, until this one is over: no lane that is computed joins the one before
        start = {"id": job.ticket, "spec": spec.model_dump(mode="json")}
        place = services.line.place(job.ticket)
        doing = RUN.busy("Waiting" if place.ahead else "")
        begun = [stage_html(over=False), LiveCards(spec).html, *gone.values()]
        yield ["", start, place_line(place.ahead, place.seconds), *doing, *begun]
        yield [gr.skip()] * len(submitted)  # Run and Cancel are the watcher's from here on

    async def submit(request: gr.Request, *values: Any) -> AsyncGenerator[list[Any]]:
        async for update in with_empty_end(press(request, *values)):
            yield update

    async def watch(start: dict[str, Any]) -> AsyncGenerator[list[Any]]:
        async for update in with_empty_end(stream(start, services)):
            yield update

    submitted = [
        panel.notice,
        panel.ticket,
        status,
        panel.run,
        panel.cancel,
        cards.stage,
        cards.cards,
        *gone,
    ]
    form = [*setup.fields, lanes.lanes, setup.rest, on_page]
    gr.on([panel.run.click, setup["prompt"].submit], submit, form, submitted, **SWIFT)
    watched = [status, panel.run, panel.cancel, shown, panel.notice, cards.cards]
    panel.ticket.change(watch, panel.ticket, watched, **SWIFT, trigger_mode="multiple")
    panel.cancel.click(RUN.on_cancel(services), None, [status, panel.run, panel.cancel], **SWIFT)


async def stream(start: dict[str, Any], services: Services) -> AsyncGenerator[list[Any]]:
    """Updates of a run: status, Run, Cancel, the run shown, the notice, then the cards."""
    job = services.jobs.watch(start.get("id"))
    if job is None:  # cancelled before it was watched: the page says so already
        return
    board, remaining = LiveCards(parse_spec(start["spec"])), RemainingTime(job.stages)
    pacer = Pacer()

    def show(news: list[Any]) -> Iterator[list[Any]]:
        lefts = [remaining.after(event) for event in news]
        for event in pacer.take(news):
            yield from _updates(event, board, lefts[-1], job.ticket, services)

    async for update in RUN.updates(job, services, 3, show):
        yield update
    if job.replaced:
        return
    if job.cancelled:
        # Told here too, not by Cancel alone: a step may have been on its way.
        yield [cancelled_line(board), *RUN.idle(), gr.skip(), gr.skip(), board.stop()]
    elif (error := RUN.failure(job)) is not None:
        yield _stopped(error, board)


def _updates(event: Any, board: LiveCards, left: float | None, ticket: str, services: Services) -> Iterator[list[Any]]:
    if isinstance(event, Finished):
        services.records.put(event.record, event.arrays)
        yield [finished_line(event), *RUN.idle(), {"run": event.record.id, "ticket": ticket}, "", board.html]
        return
    due = board.due(event)
    if isinstance(event, Step) and not due:
        return
    if due:
        board.show(event)
    yield [event_line(event, left), *RUN.busy(), gr.skip(), gr.skip(), board.html if due else gr.skip()]


def cancelled_line(board: LiveCards) -> str:
    """How far a cancelled run came."""
    if board.reached is None:
        return line("Cancelled", "warn", detail="Before the first token; nothing was saved.")
    done, total = board.reached
    return line(
        f"Cancelled after {done:,} of {total:,} tokens",
        "warn",
        detail="What had arrived stays below; nothing was saved.",
    )


def finished_line(event: Finished) -> str:
    record = event.record
    if event.reused:
        return line(
            "Done",
            "done",
            detail=f"The same comparison was stored before ({record.created[:10]}); nothing was computed.",
        )
    if event.unkept:
        return line("Done, but not kept: its link ends when this page is closed", "warn", detail=event.unkept)
    timing = record.timing
    pace = "" if timing.ms_per_step is None else f" · {timing.ms_per_step:.0f} ms a step for all rows"
    return line("Done", "done", detail=f"{seconds(timing.total_s)} in all · prefill {seconds(timing.prefill_s)}{pace}")


def _stopped(error: str, board: LiveCards) -> list[Any]:
    said = notice("The run stopped", error, "The form is as it was; change what is named and run again.")
    return [line("Stopped", "bad", detail=error), *RUN.idle(), gr.skip(), said, board.stop()]
