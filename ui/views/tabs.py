"""The views as tabs under one selection: each drawn when it is opened, kept until what it shows changes."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.escape import safe
from ui.selection import Selection, apply_pick, last_token, parts_picked, read_selection, selection_html, start
from ui.service.services import QUIET, SWIFT, Services
from ui.views.attention import create_attention
from ui.views.damage import create_damage
from ui.views.figure_files import Export, create_export, wire_export
from ui.views.rate import create_rate
from ui.views.selectors import Selectors
from ui.views.spectra import create_spectra
from ui.views.storage import create_storage
from ui.views.subspace import create_subspace
from ui.views.texts import create_texts
from ui.views.verdicts import create_verdicts
from ui.views.view import View

TABS = (
    ("Verdicts", create_verdicts),
    ("Text", create_texts),
    ("Attention", create_attention),
    ("Where", create_damage),
    ("Rate–distortion", create_rate),
    ("Bits", create_storage),
    ("Spectra", create_spectra),
    ("Query subspace", create_subspace),
)
OPEN = "(view) => window.kvq?.toldView(view)"
MARK = "(token) => window.kvq?.told(token)"
DRAWING_AHEAD = {**QUIET, "concurrency_limit": 4, "trigger_mode": "always_last"}
DRAWING = {**DRAWING_AHEAD, "concurrency_id": "drawing"}  # one line: they begin in the order asked for
CLAIMING = threading.Lock()  # of all pages, held for a moment


@dataclass
class OnPage:
    """What a page's views show or will in a moment. One a page, changed in place by its handlers, of which several may
    be at work: what was asked for last holds."""

    at: tuple[str, Selection] | None = None  # run and selection asked for last
    shown: dict[str, Any] | None = None  # the run shown last, or in a moment
    lanes: tuple[str, ...] = ()  # of the run shown, as cards and legend have them
    step: int | None = None  # of the tour that is asked for
    keys: dict[str, list[Any]] = field(default_factory=dict)  # what each view is or is being drawn for, see View.key
    picks: dict[str, float] = field(
        default_factory=dict
    )  # layer, head, token: when each was picked, on the page's clock

    def claim(self, view: str, key: list[Any], at: tuple[str, Selection]) -> bool:
        """Whether to draw a view: not where it is or is being drawn like this, or where ``at`` is no longer wanted."""
        with CLAIMING:
            if self.at != at or self.keys.get(view) == key:
                return False
            self.keys[view] = key
            return True

    def picked(self, part: str, at: float) -> bool:
        """Whether a pick of layer, head or token holds: not where a later one was answered already."""
        with CLAIMING:
            if at < self.picks.get(part, at):
                return False
            self.picks[part] = at
            return True


@dataclass
class Views:
    selectors: Selectors
    pick: gr.Textbox
    suggest: gr.Textbox
    export: Export
    views: list[View]
    open: gr.Textbox  # the name of the view in sight; js/page.js writes it, and shows what the server writes
    ahead: gr.Textbox  # the name of one that somebody points at and may open; js/tabs.js writes it
    on_page: gr.State

    @property
    def selection(self) -> list[Any]:  # Component does not declare the events of its classes
        return [self.selectors.layer, self.selectors.head, self.selectors.token]

    @property
    def words(self) -> gr.HTML:
        return self.selectors.words

    @property
    def pickers(self) -> list[Any]:
        return [picker for view in self.views for picker in view.pickers]

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [output for view in self.views for output in view.outputs]


def create_views(selectors: Selectors) -> Views:
    with gr.Column(elem_classes=["card"], elem_id="where"):
        pick = gr.Textbox(visible="hidden", elem_id="pick", show_label=False)
        suggest = gr.Textbox(visible="hidden", elem_id="suggest", show_label=False)
        bar, views = gr.HTML(""), []
        for _, create in TABS:
            with gr.Column(elem_classes=["view"]) as area:
                views.append(create())
            area.elem_id = f"view-{views[-1].name}"
        bar.value = tab_bar([(view.name, title) for view, (title, _) in zip(views, TABS, strict=True)])
        opened = gr.Textbox(views[0].name, visible="hidden", elem_id="open-view", show_label=False)
        ahead = gr.Textbox(visible="hidden", elem_id="ahead-view", show_label=False)
        export = create_export()
    return Views(selectors, pick, suggest, export, views, opened, ahead, gr.State(OnPage()))


def tab_bar(views: list[tuple[str, str]]) -> str:
    """Tabs that js/tabs.js switches by itself: Gradio's own take most of a second among this many components."""
    tabs = "".join(
        f'<button type="button" role="tab" data-view="{name}" aria-controls="view-{name}">{safe(title)}</button>'
        for name, title in views
    )
    return f'<h2 class="sr-only">Views</h2><div id="views" role="tablist" aria-label="Views">{tabs}</div>'


def wire_views(panel: Views, shown: gr.State, services: Services) -> None:
    """Draw a view when it is opened, and the open one again when a person moves the selection or one of its pickers.

    By ``input``, not ``change``: what the page itself sets is drawn by the event that sets it, once.
    """
    draw = draw_open(panel, services), drawing_inputs(panel, shown), drawing_outputs(panel)
    moved = [part.input for part in (*panel.selection, *panel.pickers)]
    gr.on([*moved, panel.open.change], *draw, **DRAWING)
    panel.open.change(None, panel.open, None, js=OPEN, **SWIFT)
    inputs = [shown, panel.ahead, *draw[1][2:]]
    panel.ahead.change(draw_ahead(panel, services), inputs, panel.outputs, **DRAWING_AHEAD)
    token = panel.selectors.token
    token.change(None, token, None, js=MARK, **SWIFT)
    inputs = [panel.pick, shown, panel.on_page, *panel.selection]
    # All of them: a click on a layer and one on a token right after it are two picks of one selection. One after the
    # other: side by side, the answer of an earlier one could come last.
    picking = {**QUIET, "concurrency_limit": 1, "concurrency_id": "picking", "trigger_mode": "multiple"}
    chosen = panel.pick.change(_picking(services), inputs, panel.selection, **picking)
    chosen.then(*draw, **DRAWING)
    wire_export(panel.export, drawing_inputs_of_view(panel, shown), partial(_with_pickers, panel), services)


def labels(record: Record) -> tuple[str, ...]:
    return tuple(lane.label for lane in record.lanes)


def drawing_inputs(panel: Views, shown: gr.State) -> list[Any]:
    return [shown, panel.open, panel.on_page, *panel.selection, *panel.pickers]


def drawing_inputs_of_view(panel: Views, shown: gr.State) -> list[Any]:
    """``drawing_inputs`` of one that draws nothing on the page."""
    return [shown, panel.open, *panel.selection, *panel.pickers]


def drawing_outputs(panel: Views) -> list[Any]:
    return [panel.words, *panel.outputs]


def draw_open(panel: Views, services: Services) -> Callable[..., list[Any]]:
    """Draws whichever view is open, and says the selection."""

    def draw(shown: dict[str, Any], opened: str, on_page: OnPage, *values: Any) -> list[Any]:
        if not shown.get("run"):
            return [gr.skip()] * len(drawing_outputs(panel))
        record, arrays = services.records.drawn(shown)
        at = read_selection(record, *values[:3])
        on_page.at = asked = record.id, at
        drawn: list[Any] = []
        for view, held in _with_pickers(panel, values[3:]):
            drawn += _drawn(view, record, arrays, on_page, at, held) if view.name == opened else _kept(view)
        return [selection_html(record, arrays, at) if on_page.at == asked else gr.skip(), *drawn]

    return draw


def draw_ahead(panel: Views, services: Services) -> Callable[..., list[Any]]:
    """Draws a view that somebody points at, so that it opens at once; not over another selection."""

    def draw(shown: dict[str, Any], told: str | None, on_page: OnPage, *values: Any) -> list[Any]:
        if not shown.get("run") or not told:
            return [gr.skip()] * len(panel.outputs)
        record, arrays = services.records.drawn(shown)
        at = read_selection(record, *values[:3])
        name, _, _ = told.partition(" ")
        return [
            part
            for view, held in _with_pickers(panel, values[3:])
            for part in (_drawn(view, record, arrays, on_page, at, held) if view.name == name else _kept(view))
        ]

    return draw


def _with_pickers(panel: Views, values: Sequence[Any]) -> Iterator[tuple[View, Sequence[Any]]]:
    """Every view with what its pickers hold."""
    at = 0
    for view in panel.views:
        yield view, values[at : (at := at + len(view.pickers))]


def fit_outputs(panel: Views) -> list[gr.components.Component]:
    """What ``fit`` sets: the selection and its words, the open tab, the pickers that follow the run, and the views."""
    return [
        *panel.selection,
        panel.words,
        panel.open,
        *(picker for view in panel.views if view.fit for picker in view.pickers),
        *panel.outputs,
    ]


def fit(
    panel: Views,
    record: Record,
    arrays: Arrays,
    shown: dict[str, Any],
    on_page: OnPage,
    opened: str,
    values: Sequence[Any],
) -> list[Any]:
    """The selection's sliders spanning the run, where ``shown`` says or there is most to see; the pickers with its
    lanes; and the open view drawn, unless it waits for its pickers to follow the run. A run that ``stays`` in sight
    with other lanes leaves view and selection to whoever moves them.

    ``values`` is what the pickers hold.
    """
    on_page.lanes = labels(record)
    if shown.get("stays") and on_page.at is not None and on_page.at[0] == record.id:
        fitted = [update for view in panel.views if view.fit for update in view.fit(record)]
        pickers = [{name: part for name, part in update.items() if name != "value"} for update in fitted]
        return [*[gr.skip()] * 5, *pickers, *_draw_one(panel, opened, record, arrays, on_page, on_page.at[1], values)]
    at, env = start(record, arrays), record.environment
    if asked := shown.get("at"):
        at = read_selection(record, *({**asdict(at), **asked}[name] for name in ("layer", "head", "token")))
    name = shown.get("view") if shown.get("view") in {view.name for view in panel.views} else None
    on_page.at = record.id, at
    return [
        gr.update(maximum=max(1, env.layers - 1), value=at.layer),
        gr.update(maximum=max(1, env.query_heads - 1), value=at.head),
        gr.update(maximum=max(1, last_token(record)), value=at.token),
        selection_html(record, arrays, at),
        gr.skip() if name is None else name,
        *(update for view in panel.views if view.fit for update in view.fit(record)),
        *_draw_one(panel, name or opened, record, arrays, on_page, at, values),
    ]


def _draw_one(
    panel: Views, name: str, record: Record, arrays: Arrays, on_page: OnPage, at: Selection, values: Sequence[Any]
) -> list[Any]:
    """The outputs of all views, where only this one is drawn, and only with pickers that any run leaves as they are."""
    return [
        part
        for view, held in _with_pickers(panel, values)
        for part in (
            _drawn(view, record, arrays, on_page, at, held) if view.name == name and not view.fit else _kept(view)
        )
    ]


def _picking(services: Services) -> Callable[..., list[Any]]:
    def picking(raw: str, shown: dict[str, Any], on_page: OnPage, layer: Any, head: Any, token: Any) -> list[Any]:
        """Moves what was picked and leaves the rest, which may be on its way to elsewhere."""
        if not shown.get("run"):
            return [gr.skip()] * 3
        record, _ = services.records.drawn(shown)
        at = asdict(apply_pick(raw, read_selection(record, layer, head, token), record))
        moved = {part for part, sent in parts_picked(raw).items() if on_page.picked(part, sent)}
        return [at[part] if part in moved else gr.skip() for part in ("layer", "head", "token")]

    return picking


def _drawn(
    view: View, record: Record, arrays: Arrays, on_page: OnPage, at: Selection, picked: Sequence[Any]
) -> list[Any]:
    """New figures, or the ones that are there already; none where others were asked for in the meantime."""
    key = view.key(record, at, picked)
    if not on_page.claim(view.name, key, (record.id, at)):
        return _kept(view)
    found = view.draw(record, arrays, at, picked)
    return found if on_page.keys[view.name] == key else _kept(view)


def _kept(view: View) -> list[Any]:
    return [gr.skip()] * len(view.outputs)
