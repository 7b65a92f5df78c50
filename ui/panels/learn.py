"""The guided tour above the views: a step's words, and the buttons that lead through it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui.html.escape import safe
from ui.panels.tour import LAB, TOY, shipped_ids, tour
from ui.panels.toy import toy_html
from ui.service.services import QUIET, SWIFT, Services
from ui.views.tabs import OnPage

# Without the tour the address is that of the run it showed last.
LEAVE = """() => window.kvqVisit?.follow(new URL(document.querySelector("#share textarea").value).search.slice(1))"""
TO_VIEWS = """() => setTimeout(() => document.getElementById("learn")?.scrollIntoView({block: "start"}), 60)"""
CLOSED: dict[str, Any] = {"step": None}
ORDERED = {**QUIET, "concurrency_limit": 1, "concurrency_id": "tour"}  # the end of the tour comes after its last step


@dataclass
class Learn:
    area: gr.Column
    words: gr.HTML
    back: gr.Button
    forth: gr.Button
    close: gr.Button
    at: gr.State

    @property
    def outputs(self) -> list[Any]:
        return [self.area, self.words, self.back, self.forth]


def create_learn() -> Learn:
    with gr.Column(visible=False, elem_id="learn", elem_classes=["card"]) as area:
        words = gr.HTML("")
        with gr.Row(elem_id="learn-steps"):
            back = gr.Button("Back", size="sm", elem_id="learn-back", min_width=70)
            forth = gr.Button("Next", size="sm", variant="primary", elem_id="learn-next", min_width=70)
            close = gr.Button("End the tour", size="sm", elem_id="learn-close", min_width=90)
    return Learn(area, words, back, forth, close, gr.State(CLOSED))


def show_step(number: int) -> list[Any]:
    """Updates of Learn.outputs for a step, counted from 0; a step out of range closes the tour."""
    steps = tour()
    if not 0 <= number < len(steps):
        return [gr.update(visible=False), "", gr.skip(), gr.skip()]
    step = steps[number]
    own = {LAB: '<a href="lab" target="_blank" rel="noopener" data-lab>Open the lab</a>', TOY: ""}
    to_figure = own.get(step.figure, '<button type="button" class="plain-button" data-show>Show the figure</button>')
    words = (
        f'<div class="tour-step" data-figure="{safe(step.figure)}" data-step="{number}" data-on="{safe(step.on)}">'
        f'<p class="muted">Learn · step {number + 1} of {len(steps)}</p><h3>{safe(step.title)}</h3>'
        f'<p>{safe(step.text)} {to_figure}</p><p class="tour-action"><b>Try it</b> {safe(step.action)}</p>'
        f"{toy_html() if step.figure == TOY else ''}</div>"
    )
    last = number == len(steps) - 1
    return [
        gr.update(visible=True),
        words,
        gr.update(interactive=number > 0),
        gr.update(value="Finish" if last else "Next"),
    ]


def show_step_of_run(shown: dict[str, Any], asked: int | None) -> list[Any]:
    """Updates of Learn.outputs when a run is shown: the words of its step come with it, where a step shows it. Not of a
    tour that has gone on, or was ended, since: ``asked`` is the step that is wanted now."""
    return show_step(shown["step"]) if shown.get("step", -1) == asked else [gr.skip()] * 4


def at_step(number: int) -> dict[str, Any]:
    return {"step": number} if 0 <= number < len(tour()) else CLOSED


def place(number: int) -> dict[str, Any] | None:
    """The run, view and selection a step shows; None where its example is not there."""
    step = tour()[number]
    run = shipped_ids().get(step.example)
    return (
        None if run is None else {"run": run, "ticket": "link", "view": step.view, "at": step.selection, "step": number}
    )


def step_number(value: str) -> int:
    """The step an address names, from 1; anything else is the first."""
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 5 else 0
    return number - 1 if 0 < number <= len(tour()) else 0


def wire_learn(panel: Learn, shown: gr.State, on_page: gr.State, services: Services) -> None:
    """Back and Next show the step's run in its view; its words come with it, see ``show_step_of_run``."""

    def go(by: int) -> Callable[..., list[Any]]:
        def going(at: dict[str, Any], page: OnPage, request: gr.Request) -> list[Any]:
            number = (at.get("step") or 0) + by
            found = place(number) if 0 <= number < len(tour()) else None
            if found is None:
                page.step = None
                return [at_step(number), *show_step(number), gr.skip()]
            page.step = number
            begun = services.jobs.newest(
                request.session_hash or ""
            )  # it is shown over that run, and over none after it
            return [at_step(number), *[gr.skip()] * 4, {**found, "after": begun}]

        return going

    def close(page: OnPage) -> list[Any]:
        page.step = None
        return [CLOSED, *show_step(-1)]

    for button, by in ((panel.back, -1), (panel.forth, 1)):
        gone = button.click(go(by), [panel.at, on_page], [panel.at, *panel.outputs, shown], **ORDERED)
        gone.then(None, None, None, js=TO_VIEWS, **SWIFT)
    panel.close.click(close, on_page, [panel.at, *panel.outputs], **ORDERED)
    panel.close.click(None, None, None, js=LEAVE, **SWIFT)
