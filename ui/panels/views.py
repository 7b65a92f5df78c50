"""The views as tabs under one selection: each drawn when it is opened, kept until what it shows changes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.export import view_csv, view_json
from ui.figures.base import Arrays
from ui.panels.damage import create_damage
from ui.panels.rate import create_rate
from ui.panels.spectra import create_spectra
from ui.panels.storage import create_storage
from ui.panels.subspace import create_subspace
from ui.panels.texts import create_texts
from ui.panels.verdicts import create_verdicts
from ui.panels.view import View
from ui.selection import Selection, last_token, picked, selected, start, told
from ui.services import QUIET, SWIFT, Services

TABS = (
    ("Verdicts", create_verdicts),
    ("Text", create_texts),
    ("Where", create_damage),
    ("Rate–distortion", create_rate),
    ("Bits", create_storage),
    ("Spectra", create_spectra),
    ("Query subspace", create_subspace),
)
# Clicks in figures and on tokens, image files, the mark on the selected token: what a browser does by itself.
PAGE_JS = (Path(__file__).parent.parent / "page.js").read_text(encoding="utf-8")
MARK = "(token) => window.kvq?.mark(token)"
SAVE = "(text, name) => window.kvq?.save(text, name)"


@dataclass
class Views:
    layer: gr.Slider
    head: gr.Slider
    token: gr.Slider
    told: gr.HTML
    pick: gr.Textbox
    suggest: gr.Textbox
    export: tuple[gr.Button, gr.Button, gr.Textbox, gr.Textbox]
    tabs: gr.Tabs
    views: list[View]
    open: gr.State
    drawn: gr.State  # what each view's figures were drawn for

    @property
    def selection(self) -> list[gr.components.Component]:
        return [self.layer, self.head, self.token]

    @property
    def pickers(self) -> list[gr.components.Component]:
        return [picker for view in self.views for picker in view.pickers]

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [output for view in self.views for output in view.outputs]


def create_views() -> Views:
    with gr.Column(elem_classes=["card"], elem_id="where"):
        with gr.Column(elem_id="selection"):
            with gr.Row(elem_id="pickers"):
                layer = _slider("Layer", "pick-layer", 29)
                head = _slider("Query head", "pick-head", 8)
                token = _slider("Token", "pick-token", 63)
            said = gr.HTML("", elem_id="selected")
        pick = gr.Textbox(visible="hidden", elem_id="pick", show_label=False)
        suggest = gr.Textbox(visible="hidden", elem_id="suggest", show_label=False)
        views = []
        with gr.Tabs(elem_id="views", overflow_behavior="wrap") as tabs:
            for title, create in TABS:
                with gr.Tab(title) as tab:
                    view = create()
                view.tab, tab.id = tab, view.name
                views.append(view)
        export = _create_export()
    return Views(layer, head, token, said, pick, suggest, export, tabs, views, gr.State(views[0].name), gr.State({}))


def _slider(label: str, name: str, high: int) -> gr.Slider:
    return gr.Slider(
        0, high, value=0, step=1, label=label, elem_id=name, min_width=170, buttons=[], interactive=True
    )  # fmt: skip


def _create_export() -> tuple[gr.Button, gr.Button, gr.Textbox, gr.Textbox]:
    with gr.Row(elem_id="export"):
        gr.HTML(
            '<p class="muted">Export this view</p>'
            '<button type="button" class="plain-button" data-image="png">PNG</button>'
            '<button type="button" class="plain-button" data-image="svg">SVG</button>'
        )
        csv = gr.Button("CSV", size="sm", elem_id="view-csv", min_width=50)
        json = gr.Button("JSON", size="sm", elem_id="view-json", min_width=50)
        text = gr.Textbox(visible=False)
        name = gr.Textbox(visible=False)
    return csv, json, text, name


def wire_views(panel: Views, shown: gr.State, services: Services) -> None:
    """Draw a view when it is opened, and the open one again when the selection or one of its pickers moves."""
    for view in panel.views:
        inputs = [shown, panel.open, panel.drawn, *panel.selection, *view.pickers]
        outputs = [panel.open, panel.drawn, *view.outputs]
        assert view.tab is not None
        view.tab.select(_opening(view, services), inputs, outputs, **QUIET, concurrency_limit=4)
        if view.pickers:
            moved = [picker.change for picker in view.pickers]
            gr.on(moved, _moving(view, services), inputs, outputs, **QUIET, trigger_mode="always_last",
                  concurrency_limit=4)  # fmt: skip
    gr.on(
        [part.change for part in panel.selection], draw_open(panel, services), drawing_inputs(panel, shown),
        drawing_outputs(panel), **QUIET, trigger_mode="always_last", concurrency_limit=4,
    )  # fmt: skip
    panel.token.change(None, panel.token, None, js=MARK, **SWIFT)
    panel.pick.change(_picking(services), [panel.pick, shown, *panel.selection], panel.selection, **SWIFT)
    _wire_export(panel, shown, services)


def drawing_inputs(panel: Views, shown: gr.State) -> list[Any]:
    return [shown, panel.open, panel.drawn, *panel.selection, *panel.pickers]


def drawing_outputs(panel: Views) -> list[Any]:
    return [panel.told, panel.drawn, *panel.outputs]


def draw_open(panel: Views, services: Services) -> Callable[..., list[Any]]:
    """Draws whichever view is open, and says the selection."""

    def draw(shown: dict[str, Any], opened: str, drawn: dict, layer: Any, head: Any, token: Any, *rest: Any):
        if not shown.get("run"):
            return [gr.skip()] * len(drawing_outputs(panel))
        record, arrays = services.shelf.get(shown["run"])
        at = selected(record, layer, head, token)
        values: list[Any] = []
        left = list(rest)
        for view in panel.views:
            mine, left = left[: len(view.pickers)], left[len(view.pickers) :]
            values += _drawn(view, services, shown, drawn, at, mine) if view.name == opened else _kept(view)
        return [told(record, arrays, at), drawn, *values]

    return draw


def fitted(panel: Views) -> list[gr.components.Component]:
    """What ``fit`` sets: the selection, the open tab, and the pickers that follow the run."""
    return [
        *panel.selection,
        panel.tabs,
        panel.open,
        *(picker for view in panel.views if view.fit for picker in view.pickers),
    ]


def fit(panel: Views, record: Record, arrays: Arrays, shown: dict[str, Any]) -> list[Any]:
    """The selection's sliders spanning the run, where ``shown`` says or there is most to see; the pickers with its
    lanes."""
    at, env = start(record, arrays), record.environment
    if asked := shown.get("at"):
        at = selected(record, *({**asdict(at), **asked}[name] for name in ("layer", "head", "token")))
    view = shown.get("view")
    tab = [gr.skip(), gr.skip()] if view is None else [gr.update(selected=view), view]
    return [
        gr.update(maximum=max(1, env.layers - 1), value=at.layer),
        gr.update(maximum=max(1, env.query_heads - 1), value=at.head),
        gr.update(maximum=max(1, last_token(record)), value=at.token),
        *tab,
        *(update for view in panel.views if view.fit for update in view.fit(record)),
    ]


def _picking(services: Services) -> Callable[..., list[Any]]:
    def picking(raw: str, shown: dict[str, Any], layer: Any, head: Any, token: Any) -> list[Any]:
        if not shown.get("run"):
            return [gr.skip()] * 3
        record, _ = services.shelf.get(shown["run"])
        at = picked(raw, selected(record, layer, head, token), record)
        return [at.layer, at.head, at.token]

    return picking


def _opening(view: View, services: Services) -> Callable[..., list[Any]]:
    def opening(shown: dict[str, Any], opened: str, drawn: dict, *picked: Any) -> list[Any]:
        return [view.name, drawn, *_now(view, services, shown, drawn, picked)]

    return opening


def _moving(view: View, services: Services) -> Callable[..., list[Any]]:
    def moving(shown: dict[str, Any], opened: str, drawn: dict, *picked: Any) -> list[Any]:
        now = _now(view, services, shown, drawn, picked) if opened == view.name else _kept(view)
        return [gr.skip(), drawn, *now]

    return moving


def _now(view: View, services: Services, shown: dict[str, Any], drawn: dict, picked: Sequence[Any]) -> list[Any]:
    if not shown.get("run"):
        return _kept(view)
    record, _ = services.shelf.get(shown["run"])
    return _drawn(view, services, shown, drawn, selected(record, *picked[:3]), picked[3:])


def _drawn(
    view: View, services: Services, shown: dict[str, Any], drawn: dict, at: Selection, picked: Sequence[Any]
) -> list[Any]:
    """New figures, or the ones that are there already; ``drawn`` remembers which."""
    key = view.key(shown["run"], at, picked)
    if drawn.get(view.name) == key:
        return _kept(view)
    drawn[view.name] = key
    return view.draw(*services.shelf.get(shown["run"]), at, picked)


def _kept(view: View) -> list[Any]:
    return [gr.skip()] * len(view.outputs)


def _wire_export(panel: Views, shown: gr.State, services: Services) -> None:
    csv, json, text, name = panel.export
    inputs = [shown, panel.open, *panel.selection, *panel.pickers]
    for button, write, suffix in ((csv, view_csv, "csv"), (json, view_json, "json")):

        def file(shown: dict[str, Any], opened: str, *values: Any, write=write, suffix=suffix) -> list[Any]:
            if not shown.get("run"):
                return [gr.skip()] * 2
            record, arrays = services.shelf.get(shown["run"])
            at, left = selected(record, *values[:3]), list(values[3:])
            for view in panel.views:
                mine, left = left[: len(view.pickers)], left[len(view.pickers) :]
                if view.name == opened:
                    return [
                        write(record, at, view.name, view.compute(record, arrays, at, *mine)),
                        f"{record.id}-{opened}.{suffix}",
                    ]
            return [gr.skip()] * 2

        button.click(file, inputs, [text, name], **SWIFT).then(None, [text, name], None, js=SAVE, **SWIFT)
