"""Updates of a study at work: the status line, the buttons, the lanes as they stand, and the result at its end."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import gradio as gr

from kvq_core.record.events import Event, Finished, progress
from ui.html.status import line, notice, place_line, sentence
from ui.panels.job_panel import JobPanel
from ui.service.line import LinePlace
from ui.study.access import Results
from ui.study.results import live_html
from ui.study.work import StudyState, StudyWork

STUDY = JobPanel(
    "study", "Start", "Computing", ("Cancelled", "warn", None, "What is done is kept; Go on computes what is left.")
)
LOOK_S = 0.25  # between two looks at a study
SHARE = 4.0  # of the time between two drawings of the table that drawing may take: one in so many


S = TypeVar("S", covariant=True)


class Followable(Protocol[S]):
    """Work that tells how far it is."""

    @property
    def over(self) -> bool: ...

    @property
    def replaced(self) -> bool: ...

    def standing(self) -> S: ...


async def follow(going: Followable[S]) -> AsyncGenerator[S]:
    """How far work is, whenever that changes, until it is over; nothing more once the session has begun another."""
    last = None
    while not going.replaced:
        over = going.over  # asked before: what is told after this is seen by the next look
        if (now := going.standing()) is not last:
            yield now
            last = now
        if over:
            return
        await asyncio.sleep(LOOK_S)


async def updates(going: StudyWork, results: Results) -> AsyncGenerator[list[Any]]:
    """Status, Start, Cancel, Go on, the live table, and the study shown."""
    drawn, wait, hidden = None, 0.0, gr.update(visible=False)
    loop = asyncio.get_running_loop()
    async for now in follow(going):
        table: Any = gr.skip()
        if now.result is not None and now.result is not drawn and loop.time() >= wait:
            began = loop.time()
            table = await asyncio.to_thread(live_html, now.result)
            drawn, wait = now.result, began + (1 + SHARE) * (loop.time() - began)
        yield [standing_line(now, len(going.plan.cells)), *STUDY.busy(), hidden, table, gr.skip()]
    if going.replaced:
        return
    result = going.standing().result
    if result is not None:
        results.put(result)
    left = len(going.plan.cells) - (0 if result is None else result.done)
    shown = gr.skip() if result is None else {"study": going.plan.id, "done": result.done, "own": True}
    yield [end_line(going, left), *STUDY.idle(), gr.update(visible=left > 0), "", shown]


def standing_line(now: StudyState, total: int) -> str:
    """The place in line, or the cell at work and what is done with it."""
    if isinstance(now.doing, LinePlace) and now.doing.ahead:
        return place_line(now.doing.ahead, now.doing.seconds)
    done = 0 if now.result is None else now.result.done + len(now.result.failed)
    left = "" if now.left is None else f"About {timedelta(seconds=round(now.left))} left without waiting. "
    if now.result is None:
        return line("Reading what is there", done=0.0)
    said = f"Cell {min(done + 1, total):,} of {total:,}" + (f": {now.prompt}" if now.prompt else "")
    return line(said, done=done / max(1, total), detail=left + doing_words(now.doing))


def doing_words(doing: Event | LinePlace | None) -> str:
    """What is done with the run at work."""
    return "" if doing is None or isinstance(doing, LinePlace | Finished) else f"{sentence(progress(doing))}."


def end_line(going: StudyWork, left: int) -> str:
    """How it ended."""
    if (error := going.failure()) is not None:
        return notice("The study stopped", error, "What is done is kept; Go on computes what is left.")
    if going.cancelled:
        return STUDY.cancelled_line()
    return line("All cells are done", "done") if not left else line(f"{left} cells are not done", "warn")
