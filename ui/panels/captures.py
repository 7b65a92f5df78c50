"""Four captures as tabs, each drawn when it is opened: where scores moved, spectra, query subspace, stored bits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.record import Record
from ui.figures.base import Arrays
from ui.figures.damage import worst_head
from ui.panels.damage import create_damage, show_damage
from ui.panels.spectra import create_spectra, show_spectra
from ui.panels.storage import create_storage, show_storage
from ui.panels.subspace import create_subspace, show_subspace
from ui.services import QUIET, SWIFT, Services

FIRST = "damage"


@dataclass
class View:
    """A tab: its components, and ``draw(record, arrays, *pickers)`` that gives their values."""

    name: str
    tab: gr.Tab
    outputs: list[gr.components.Component]
    draw: Callable[..., list[Any]]
    pickers: list[gr.components.Component]


@dataclass
class Captures:
    layer: gr.Slider
    head: gr.Slider
    views: list[View]
    open: gr.State


def create_captures() -> Captures:
    with gr.Column(elem_classes=["card"], elem_id="where"):
        gr.HTML("<h2>Where, and how many bytes</h2>")
        with gr.Row(elem_id="pickers"):
            layer = gr.Slider(0, 29, value=0, step=1, label="Layer", elem_id="pick-layer", min_width=180, buttons=[])
            head = gr.Slider(0, 8, value=0, step=1, label="Query head", elem_id="pick-head", min_width=180, buttons=[])
        with gr.Tabs(selected=FIRST, elem_id="captures"):
            with gr.Tab("Attention scores", id="damage") as tab:
                views = [View("damage", tab, create_damage(), show_damage, [layer, head])]
            with gr.Tab("Key spectra", id="spectra") as tab:
                views.append(View("spectra", tab, create_spectra(), show_spectra, [layer]))
            with gr.Tab("Query subspace", id="subspace") as tab:
                outputs, rank = create_subspace()
                views.append(View("subspace", tab, outputs, show_subspace, [layer, rank]))
            with gr.Tab("Bits and bytes", id="storage") as tab:
                outputs, pickers = create_storage()
                views.append(View("storage", tab, outputs, show_storage, pickers))
    return Captures(layer, head, views, gr.State(FIRST))


def wire_captures(panel: Captures, shown: gr.State, services: Services) -> None:
    """Draw a tab when it is opened, and the open one again when a picker moves."""
    for view in panel.views:
        draw = _drawing(view, services)
        view.tab.select(lambda name=view.name: name, None, panel.open, **SWIFT).then(
            draw, [shown, panel.open, *view.pickers], view.outputs, **QUIET, concurrency_limit=4
        )
        moved = [p.release if isinstance(p, gr.Slider) else p.change for p in view.pickers]
        gr.on(
            moved, draw, [shown, panel.open, *view.pickers], view.outputs, **QUIET,
            trigger_mode="always_last", concurrency_limit=4,
        )  # fmt: skip


def draw_open(panel: Captures, shown: gr.State, services: Services, after: Any) -> None:
    """Once ``after`` has set the pickers for a new run, draw whichever tab is open."""
    for view in panel.views:
        after.then(
            _drawing(view, services), [shown, panel.open, *view.pickers], view.outputs, **QUIET, concurrency_limit=4
        )


def pickers_for(record: Record, arrays: Arrays) -> list[Any]:
    """Layer and head sliders spanning the model, on the head whose scores moved most."""
    layer, head = worst_head(record, arrays)
    env = record.environment
    return [
        gr.update(maximum=max(1, env.layers - 1), value=layer),
        gr.update(maximum=max(1, env.query_heads - 1), value=head),
    ]


def _drawing(view: View, services: Services) -> Callable[..., list[Any]]:
    def draw(shown: dict[str, Any], opened: str, *picked: Any) -> list[Any]:
        if opened != view.name or not shown.get("run"):
            return [gr.skip()] * len(view.outputs)
        return view.draw(*services.shelf.get(shown["run"]), *picked)

    return draw
