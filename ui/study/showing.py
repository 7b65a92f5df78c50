"""What a study found, drawn when it is there; its model, its prompts and its sharing."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from ui.figures.prompt_map import worst_first
from ui.html.status import notice
from ui.service.services import QUIET, SWIFT
from ui.service.streams import with_empty_end
from ui.study.access import is_private, key_for, mine_html, my_key, remember, share
from ui.study.cell import OPENING, cell_html, choices, open_cell
from ui.study.parts import StudyPlace
from ui.study.results import draw, files_of, link_html

StudyShown = dict[str, Any] | None
GO_JS = "(query) => { if (query) location.assign(query); }"


def wire_shown(place: StudyPlace) -> None:
    """Draw the study, or another of its models; share it."""
    result, services = place.result, place.studies.services

    def show(shown: StudyShown, mine: Any) -> list[Any]:
        found = place.found(shown)
        if shown is None or found is None:
            return [gr.skip()] * len(outputs)
        kept = mine
        if shown.get("own"):
            kept = remember(mine, found, key_for(services, found.id))
        closed = gr.update(visible=is_private(services, found.id))
        return [*files_of(found, services), closed, kept, mine_html(kept)]

    def drawn(shown: StudyShown, model: str | None) -> list[Any]:
        found = place.found(shown)
        if found is None:
            return [gr.skip()] * (len(result.outputs) + 1)
        return [*draw(found, model), choices(found, _model(place, shown, model))]

    def publish(shown: StudyShown, mine: Any, request: gr.Request) -> list[Any]:
        id = (shown or {}).get("study", "")
        try:
            share(services, id, my_key(mine, id))
        except KvqError as error:
            return [notice("This cannot be shared", str(error)), gr.skip()]
        return [link_html(id, request), gr.update(visible=False)]

    picked = [result.shown, result.model]
    figures = [*result.outputs, place.cell.prompt]
    outputs = [*result.files, result.private, place.mine, place.listing]
    # One event for both: a model that is picked while the first is drawn is drawn after it.
    drawing = {**QUIET, "concurrency_limit": 4, "trigger_mode": "always_last"}
    gr.on([result.shown.change, result.model.input], drawn, picked, figures, **drawing)
    result.shown.change(show, [result.shown, place.mine], outputs, **QUIET, concurrency_limit=4)
    result.share.click(publish, [result.shown, place.mine], [result.link, result.private], **SWIFT)


def wire_cell(place: StudyPlace, history: gr.BrowserState) -> None:
    """A prompt is picked in the map or by its name, and opened as a full comparison, which joins the ``history``."""
    result, cell, services = place.result, place.cell, place.studies.services
    at = [result.shown, result.model, cell.prompt]

    def words(shown: StudyShown, model: str | None, prompt: str | None) -> str:
        found = place.found(shown)
        return cell_html(found, _model(place, shown, model), prompt) if found is not None and prompt else ""

    def pick(raw: str, shown: StudyShown, model: str | None) -> Any:
        found = place.found(shown)
        try:
            number = int(json.loads(raw)["prompt"])
            return worst_first(found, _model(place, shown, model))[number] if found is not None else gr.skip()
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):  # anybody's text
            return gr.skip()

    async def open_it(
        shown: StudyShown, model: str | None, prompt: str | None, kept: Any, request: gr.Request
    ) -> AsyncGenerator[list[Any]]:
        found = place.found(shown)
        if found is not None:
            opening = open_cell(found, _model(place, shown, model), prompt or "", kept, request, services)
            async for update in with_empty_end(opening):
                yield update

    cell.prompt.change(words, at, cell.words, **SWIFT)
    cell.pick.change(pick, [cell.pick, result.shown, result.model], cell.prompt, **SWIFT)
    told = [cell.status, cell.prompt, cell.open, cell.cancel]
    cell.open.click(open_it, [*at, history], [*told, history, cell.go], **SWIFT)
    cell.cancel.click(OPENING.on_cancel(services), None, told, **SWIFT)
    cell.go.change(None, cell.go, None, js=GO_JS, **SWIFT)


def _model(place: StudyPlace, shown: StudyShown, asked: str | None) -> str:
    """The model that is drawn: the one that was picked, else the first."""
    found = place.found(shown)
    models = [] if found is None else found.models
    return asked if asked in models else next(iter(models), "")
