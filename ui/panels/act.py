"""Act where one looks: lanes that change one thing there are computed beside the run, join it, and can be undone."""

import asyncio
from collections.abc import AsyncGenerator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.analysis.acts import Act, LookedPlace, acts
from kvq_core.analysis.causes import variants
from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.errors import KvqError, SpecError
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.events import Finished
from kvq_core.record.fields import Record
from kvq_core.record.subset import TOGETHER
from kvq_core.spec import Lane
from ui.html.acts import CANCEL, leads_html, offers_html, tried_html
from ui.html.status import event_line, line, notice, place_line
from ui.panels.job_panel import JobPanel
from ui.panels.tried import came, drawn_anew, undone
from ui.selection import Selection, read_selection
from ui.service.jobs import Job, follow
from ui.service.line import LinePlace as InLine
from ui.service.records import drawn_lanes
from ui.service.services import QUIET, SWIFT, Services, visitor
from ui.service.streams import with_empty_end
from ui.views.figure_files import read_request
from ui.views.tabs import OnPage, Views

ACTING = JobPanel("acting", "Try", "Computing", ("Cancelled", "warn", None, "The run is as it was."))
MOST = 20  # lanes that are added to a run
CHANGED = line(
    "The lanes of this run have changed", "warn", detail="Another page added or took back one. Choose again."
)
LEADS = "This run is a lane that was added to run {parent}; try others there."


@dataclass
class ActPanel:
    message: gr.Textbox  # what a person does; js/act.js writes it
    status: gr.HTML
    tried: gr.HTML
    offers: gr.HTML


@dataclass(frozen=True)
class _Asked:
    """What a page has in view when something is done; ``on_page`` tells what it has by the time that this is over."""

    shown: dict[str, Any]
    at: tuple[Any, Any, Any]
    pick: Any
    on_page: OnPage


def create_act() -> ActPanel:
    """Between the selection and what to try next."""
    message = gr.Textbox(visible="hidden", elem_id="act", show_label=False)
    with gr.Column(elem_id="acts", elem_classes=["instrument"]):
        return ActPanel(
            message,
            gr.HTML("", elem_id="act-status"),
            gr.HTML("", elem_id="act-tried"),
            gr.HTML("", elem_id="act-offers"),
        )


def wire_act(panel: ActPanel, views: Views, shown: gr.State, services: Services) -> None:
    """Offer what may help at the selection; compute what is chosen, show it among the run's lanes, take it back."""

    def offer(raw: str, pick: str, shown: dict[str, Any], *at: Any) -> list[Any]:
        if not shown.get("run"):
            return ["", ""]
        try:
            record, arrays = services.records.drawn(shown)
        except KvqError:  # said where the run would be
            return ["", ""]
        now = read_selection(record, *at)
        if record.parent is not None:
            return [leads_html(record.parent), ""]
        index = _lane(record, arrays, now, read_request(raw).get("lane"))
        offered = () if index is None else acts(record, arrays, index, place_of(record, now, pick))
        made = offers_html(record, -1 if index is None else index, now.layer, offered)
        return [made, tried_html(came(services, shown))]

    async def act(
        raw: str, pick: str, shown: dict[str, Any], page: OnPage, layer: Any, head: Any, token: Any, request: gr.Request
    ) -> AsyncGenerator[list[Any]]:
        asked = _Asked(shown, (layer, head, token), pick, page)
        session, who = ACTING.session(request), visitor(request)
        async for update in with_empty_end(stream(read_request(raw), asked, session, who, services)):
            yield update

    def fresh(shown: dict[str, Any], page: OnPage) -> Any:
        """Before another view is drawn of lanes that the legend does not have."""
        anew = drawn_anew(services, shown, page)
        if anew is not None:
            page.shown = anew
        return gr.skip() if anew is None else anew

    moves = [part.change for part in (*views.selection, views.pick, views.open)]
    gr.on(moves, fresh, [shown, views.on_page], shown, **SWIFT)
    inputs = [panel.message, views.pick, shown, *views.selection]
    places = [*(part.change for part in (*views.selection, views.pick, panel.message)), shown.change]
    gr.on(places, offer, inputs, [panel.offers, panel.tried], **QUIET, trigger_mode="always_last", concurrency_limit=4)
    done = [panel.message, views.pick, shown, views.on_page, *views.selection]
    panel.message.change(act, done, [panel.status, shown], **SWIFT, trigger_mode="multiple")


def place_of(record: Record, at: Selection, pick: Any) -> LookedPlace:
    """Where one looks: the selection, and key positions or a channel that were clicked last."""
    clicked = read_request(pick)
    key, channel = clicked.get("key", clicked.get("position")), clicked.get("channel")
    span = (round(key), round(key) + 1) if isinstance(key, int | float) and 0 <= key < 1e9 else None
    at_channel = round(channel) if isinstance(channel, int | float) and 0 <= channel < 1e9 else None
    return LookedPlace(at.layer, at.head, at.kv_head(record), span, at_channel)


async def stream(
    told: dict[str, Any], asked: _Asked, session: str, visitor: str, services: Services
) -> AsyncGenerator[list[Any]]:
    """Updates of the status and of the run shown."""
    do, shown = told.get("do"), asked.shown
    if do == "cancel":
        services.jobs.forget(session)
        yield [ACTING.cancelled_line(), gr.skip()]
        return
    if not shown.get("run") or do in (None, "lane"):
        return
    if do != "undo" and (anew := drawn_anew(services, shown, asked.on_page)) is not None:
        yield [CHANGED, _shows(anew, asked)]
        return
    try:
        if do == "map" and (found := await asyncio.to_thread(_seen_at_once, asked, services)) is not None:
            services.records.put(found.record, found.arrays)
            yield await asyncio.to_thread(_joined, found, "", "map", asked, services)
            return
        if do == "undo":
            without = await asyncio.to_thread(undone, services, _in_sight(asked) or {}, told.get("run"))
            yield [line("Undone", "done", detail="The lane is gone from the run."), _shows(without, asked)]
            return
        work = partial(copy_context().run, _begin, told, asked, session, visitor, services)
        job, label = await asyncio.to_thread(work)
    except KvqError as error:
        yield [notice("This cannot be tried", str(error)), gr.skip()]
        return
    async for update in _followed(job, label, str(do), asked, services):
        yield update


async def _followed(job: Job, label: str, do: str, asked: _Asked, services: Services) -> AsyncGenerator[list[Any]]:
    async for news in follow(job, services.line):
        if isinstance(news, InLine):
            yield [place_line(news.ahead, news.seconds) + CANCEL, gr.skip()]
            continue
        event = news[-1]
        if isinstance(event, Finished):
            services.records.put(event.record, event.arrays)
            yield await asyncio.to_thread(_joined, event, label, do, asked, services)
        else:
            yield [(event_line(event) or "") + CANCEL, gr.skip()]
    if job.replaced:
        return
    if job.cancelled:
        yield [ACTING.cancelled_line(), gr.skip()]
    elif (error := ACTING.failure(job)) is not None:
        yield [notice("It was not computed", error), gr.skip()]


def _begin(told: dict[str, Any], asked: _Asked, session: str, visitor: str, services: Services) -> tuple[Job, str]:
    """The job of what was chosen, and the label of the lane it is about. Raises KvqError where it may not start."""
    record, arrays = services.records.drawn(asked.shown)
    index = told.get("lane")
    if not isinstance(index, int) or not 0 <= index < len(record.lanes):
        raise SpecError("That lane is not drawn any more; choose another one.")
    label = record.lanes[index].label
    if told["do"] == "map":
        job = _looking(record, asked, session, visitor, services)
    elif told["do"] in ("why", "layers"):
        added = record.added(index)
        parent, at = (asked.shown["run"], record.number(index)) if added is None else added
        begin = services.explain if told["do"] == "why" else partial(services.look_through, record)
        job = begin(services.records.get(parent)[0], at, session, visitor)
    else:
        if record.parent is not None:
            raise SpecError(LEADS.format(parent=record.parent))
        if len(record.whole.lanes) - len(services.records.get(record.id)[0].lanes) >= MOST:
            raise SpecError(f"{MOST} lanes were added to this run; undo one, or run them as a comparison.")
        lane = _chosen(told, record, arrays, index, asked)
        job = services.extend(services.records.get(asked.shown["run"])[0], lane, session, visitor, aside=True)
    services.jobs.watch(job.ticket)
    return job, label


def _seen_at_once(asked: _Asked, services: Services) -> Finished | None:
    """Maps of the selected layer where memory holds what they are made of. Raises KvqError."""
    record, _ = services.records.drawn(asked.shown)
    return services.look_held(record, _done(record), read_selection(record, *asked.at).layer)


def _done(record: Record) -> list[int]:
    return [at for at, lane in enumerate(record.lanes) if lane.status == "done" and lane_of(record, at) is not None]


def _looking(record: Record, asked: _Asked, session: str, visitor: str, services: Services) -> Job:
    """The job of a look at the selected layer, of the lanes that are drawn."""
    layer = read_selection(record, *asked.at).layer
    return services.look_at(record, _done(record), layer, session, visitor)


def _chosen(told: dict[str, Any], record: Record, arrays: Arrays, index: int, asked: _Asked) -> Lane:
    """The lane that was offered under that name. Raises SpecError where it is offered no more."""
    if told["do"] == "cause":
        own = lane_of(record, index)
        named = {} if own is None else {lane.label: lane for _, lane in variants(own, shape_of(record))}
        if isinstance(cause := told.get("cause"), str) and cause in named and own is not None:
            short = own.label[: 57 - len(cause)].rstrip()
            return named[cause].model_copy(update={"label": f"{short} + {cause}"})
    place = place_of(record, read_selection(record, *asked.at), asked.pick)
    found: dict[str, Act] = {act.name: act for act in acts(record, arrays, index, place)}
    if told["do"] not in found:
        raise SpecError("That is not offered here any more: the run has such a lane, or the selection has moved.")
    return found[told["do"]].lane


def _joined(event: Finished, label: str, do: str, asked: _Asked, services: Services) -> list[Any]:
    """The run with what was computed: its lanes are drawn anew. Not over another run that is in sight by now."""
    if event.unkept:
        return [notice("It was computed, but not kept", event.unkept), gr.skip()]
    run, shown = event.record.id, _in_sight(asked)
    if shown is None:
        return [line("Computed", "done", detail=f"It is among the lanes of run {asked.shown['run']}."), gr.skip()]
    shown["own"] = list(dict.fromkeys([*shown.get("own", ()), run]))
    shown["without"] = [gone for gone in shown.get("without", ()) if gone != run]
    shown["reused"] = [*shown.get("reused", ()), *([run] if event.reused else [])]
    if do == "map":
        return [line("Looked at", "done", detail="The maps of that layer are kept with the run."), _shows(shown, asked)]
    if do == "layers":
        said = line(f"{label} is looked at in all layers", "done", detail="Figures of all layers show it now.")
        return [said, _shows(shown, asked)]
    if do == "why":
        said = line(f"What the damage of {label} comes from is measured", "done", detail="Its card says it.")
        return [said, _shows(shown, asked)]
    lane = event.record.lanes[0]
    shown = _shows(_drawn_too(shown, run, services), asked)
    if lane.status != "done":
        return [notice(f"{lane.label} failed", lane.error or "It was not computed."), shown]
    return [line("Computed", "done", detail=f"{lane.label} stands among the lanes now."), shown]


def _in_sight(asked: _Asked) -> dict[str, Any] | None:
    """The run as the page shows it now, to be shown again; None where it shows another one."""
    now = asked.on_page.shown or asked.shown
    if now.get("run") != asked.shown["run"]:
        return None
    return {**{name: value for name, value in now.items() if name != "home"}, "stays": True}


def _shows(shown: dict[str, Any], asked: _Asked) -> dict[str, Any]:
    """What the page shows in a moment, for whatever else is done on it meanwhile."""
    asked.on_page.shown = shown
    return shown


def _drawn_too(shown: dict[str, Any], run: str, services: Services) -> dict[str, Any]:
    """Of a run with many lanes the new one is drawn, in place of the last."""
    whole = services.records.whole(shown)[0]
    if len(whole.lanes) <= TOGETHER:
        return shown
    new = [at for at in range(len(whole.lanes)) if (whole.added(at) or ("", 0))[0] == run]
    others = [at for at in drawn_lanes(whole, shown) if at not in new]
    return {**shown, "lanes": [*others[: TOGETHER - len(new)], *new]}


def _lane(record: Record, arrays: Arrays, at: Selection, asked: Any) -> int | None:
    """The lane that is changed: the one chosen, else the one whose keys and values lose most in the layer."""
    found: list[tuple[float, int]] = []
    for index, lane in enumerate(record.lanes):
        if not lane.quantized or lane.status != "done":
            continue
        if index == asked:
            return index
        errors = [array(arrays, f"lane/{index}/{kind}_error") for kind in ("key", "value")]
        lost = sum(float(e[at.layer].mean()) for e in errors if e is not None and at.layer < len(e))
        found.append((lost or (lane.metrics.kld_mean or 0.0) if lane.metrics else lost, index))
    return max(found)[1] if found else None
