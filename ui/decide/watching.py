"""Updates of a decision at work: the status line, the buttons, and the decision at its end, or before its layers."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import gradio as gr

from ui.decide.work import DecisionWork, Stage, waits
from ui.html.status import line, notice, place_line, sentence
from ui.panels.job_panel import JobPanel
from ui.study.watching import doing_words, follow

DECIDE = JobPanel(
    "decide", "Start", "Deciding", ("Cancelled", "warn", None, "What is done is kept; Go on computes what is left.")
)


async def updates(going: DecisionWork) -> AsyncGenerator[list[Any]]:
    """Status, Start, Cancel, Go on, and the decision shown."""
    drawn, hidden = None, gr.update(visible=False)
    async for now in follow(going):
        shown: Any = gr.skip()
        if now.decision is not None and now.decision is not drawn:
            drawn, shown = now.decision, {"decision": now.decision.id, "own": True}
        yield [stage_line(now), *DECIDE.busy(), hidden, shown]
    if going.replaced:
        return
    last = going.decision
    shown = gr.skip() if last is None or last is drawn else {"decision": last.id, "own": True}
    left = going.cancelled or going.error is not None
    yield [end_line(going), *DECIDE.idle(), gr.update(visible=left), shown]


def stage_line(now: Stage) -> str:
    """The place in line, or what is being done and how much is left of it."""
    if (place := waits(now)) is not None:
        return place_line(place.ahead, place.seconds)
    at, said = now.now, sentence(now.now) + (f", at {now.prompt}" if now.prompt else "")
    left = "" if at.left is None else f"About {timedelta(seconds=round(at.left))} left of this without waiting."
    after = "The answer below stands without layers so far." if now.decision is not None else ""
    return line(said, done=at.part, detail=" ".join(filter(None, [left, doing_words(now.beside), after])))


def end_line(going: DecisionWork) -> str:
    """How it ended."""
    if (error := going.failure()) is not None:
        return notice("There is no answer", error, "What is done is kept; Go on computes what is left.")
    if going.cancelled:
        return DECIDE.cancelled_line()
    return line("Decided", "done")
