"""Four captures as tabs, each drawn when it is opened: where scores moved, spectra, query subspace, stored bits."""

from collections.abc import Callable, Sequence
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
from ui.services import QUIET, Services

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
            layer = gr.Slider(
                0, 29, value=0, step=1, label="Layer", elem_id="pick-layer", min_width=180, buttons=[], interactive=True
            )
            head = gr.Slider(
                0,
                8,
                value=0,
                step=1,
                label="Query head",
                elem_id="pick-head",
                min_width=180,
                buttons=[],
                interactive=True,
            )
        with gr.Tabs(selected=FIRST, elem_id="captures", overflow_behavior="wrap"):
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
        inputs, outputs = [shown, panel.open, *view.pickers], [panel.open, *view.outputs]
        view.tab.select(_opening(view, services), inputs, outputs, **QUIET, concurrency_limit=4)
        moved = [p.release if isinstance(p, gr.Slider) else p.change for p in view.pickers]
        gr.on(
            moved,
            _moving(view, services),
            inputs,
            outputs,
            **QUIET,
            trigger_mode="always_last",
            concurrency_limit=4,
        )


def draw_open(panel: Captures, shown: gr.State, services: Services, after: Any) -> None:
    """Once ``after`` has set the pickers for a new run, draw whichever tab is open, in one answer."""

    def draw(shown: dict[str, Any], opened: str, *picked: Any) -> list[Any]:
        values, rest = [], list(picked)
        for view in panel.views:
            mine, rest = rest[: len(view.pickers)], rest[len(view.pickers) :]
            values += _drawn(view, services, shown, mine) if view.name == opened else _kept(view)
        return values

    pickers = [picker for view in panel.views for picker in view.pickers]
    outputs = [output for view in panel.views for output in view.outputs]
    after.then(draw, [shown, panel.open, *pickers], outputs, **QUIET, concurrency_limit=4)


def pickers_for(record: Record, arrays: Arrays) -> list[Any]:
    """Layer and head sliders spanning the model, on the head whose scores moved most."""
    layer, head = worst_head(record, arrays)
    env = record.environment
    return [
        gr.update(maximum=max(1, env.layers - 1), value=layer),
        gr.update(maximum=max(1, env.query_heads - 1), value=head),
    ]


def _opening(view: View, services: Services) -> Callable[..., list[Any]]:
    def opening(shown: dict[str, Any], opened: str, *picked: Any) -> list[Any]:
        # Gradio also tells of the tab that is open when the tabs appear; draw_open has drawn that one.
        drawn = _kept(view) if opened == view.name else _drawn(view, services, shown, picked)
        return [view.name, *drawn]

    return opening


def _moving(view: View, services: Services) -> Callable[..., list[Any]]:
    def moving(shown: dict[str, Any], opened: str, *picked: Any) -> list[Any]:
        return [gr.skip(), *(_drawn(view, services, shown, picked) if opened == view.name else _kept(view))]

    return moving


def _drawn(view: View, services: Services, shown: dict[str, Any], picked: Sequence[Any]) -> list[Any]:
    if not shown.get("run"):
        return _kept(view)
    return view.draw(*services.shelf.get(shown["run"]), *picked)


def _kept(view: View) -> list[Any]:
    return [gr.skip()] * len(view.outputs)
