"""The left column of a decision: three questions, the estimate, Start and Cancel."""

import json
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.analysis.verdict import TIERS
from kvq_core.engines import engines
from kvq_core.errors import KvqError
from kvq_core.logs import log_error
from kvq_core.models import available_models
from kvq_core.settings import settings
from ui.decide.asked import ANY, BITS, CACHE, MEMORY, PROMPTS, ROOMS, SOURCES, DecideForm
from ui.decide.fitting import fitting_html
from ui.decide.quote import picked_model, quote_form, quote_html
from ui.html.escape import safe
from ui.service.services import QUIET, SWIFT
from ui.study.access import Results, demand_open, mine_of, my_key
from ui.study.asked import Form as PromptsForm
from ui.study.prompts import PromptsPanel, create_prompts

RESERVING = [name for name, engine in engines().items() if engine.batched_tokens]
AT_ONCE_JS = f"""(engine) => ({{ __type__: "update", visible: {json.dumps(RESERVING)}.includes(engine) }})"""
NOTHING_YET = "Give prompts or a study, and what an answer will take is said here."
SIZES = {MEMORY: ("24GB", "Weights and cache together"), CACHE: ("8GB", "The cache alone"), BITS: ("5.5", "An element")}
# Said by the browser: an answer of the server's could come after another size was typed.
SIZE_JS = f"""(room) => {{
  const [value, info] = {json.dumps(SIZES)}[room] ?? [];
  return {{ __type__: "update", ...(value ? {{ value, info, visible: true }} : {{ visible: false }}) }};
}}"""


@dataclass
class DecidePanel:
    """``fields`` in the order that ``form_of`` reads."""

    source: gr.Radio
    prompts: PromptsPanel
    rest: list[Any]
    study: gr.Dropdown
    of_model: gr.Dropdown
    estimate: gr.HTML
    notice: gr.HTML
    start: gr.Button
    cancel: gr.Button

    @property
    def fields(self) -> list[Any]:
        return [self.source, *self.prompts.fields, *self.rest]


def create_form() -> DecidePanel:
    source, prompts, model, study, of_model = _rested_on()
    room, size, context, batch, weights = _room()
    tolerance, engine, layers, at_once = _loss()
    with gr.Column(elem_classes=["card", "starts"], elem_id="decide-start-card"):
        estimate = gr.HTML(f'<p class="muted">{NOTHING_YET}</p>', elem_id="decide-estimate")
        message = gr.HTML("", elem_id="decide-notice")
        start = gr.Button("Start", variant="primary", elem_id="decide-start")
        cancel = gr.Button("Cancel", visible=False, elem_id="decide-cancel")
    rest = [model, study, of_model, room, size, context, batch, tolerance, engine, layers, weights, at_once]
    return DecidePanel(source, prompts, rest, study, of_model, estimate, message, start, cancel)


def _rested_on() -> tuple[gr.Radio, PromptsPanel, gr.Dropdown, gr.Dropdown, gr.Dropdown]:
    with gr.Column(elem_classes=["card", "question"], elem_id="decide-what"):
        gr.HTML("<h2>1 · Which model, which prompts?</h2>")
        source = gr.Radio(
            list(SOURCES),
            value=PROMPTS,
            show_label=False,
            container=False,
            label="What it rests on",
            interactive=True,
            elem_classes=["switch"],
            elem_id="decide-source",
        )
        known = [(choice.title, choice.id) for choice in available_models()]
        with gr.Column(elem_classes=["of-new"]):
            model = gr.Dropdown(
                known,
                value=known[0][1],
                label="Model",
                allow_custom_value=not settings().public,
                elem_id="decide-model",
                interactive=True,
            )
            prompts = create_prompts("decide")
        with gr.Column(elem_classes=["of-study"]):
            study, of_model = _of_study()
    return source, prompts, model, study, of_model


def _of_study() -> tuple[gr.Dropdown, gr.Dropdown]:
    study = gr.Dropdown(
        [],
        label="Study",
        info="One of yours, or an id",
        allow_custom_value=True,
        elem_id="decide-study",
        interactive=True,
    )
    of_model = gr.Dropdown(
        [], label="Its model", visible=False, allow_custom_value=True, elem_id="decide-of-model", interactive=True
    )
    return study, of_model


def _room() -> list[Any]:
    with gr.Column(elem_classes=["card", "question"], elem_id="decide-room-card"):
        gr.HTML("<h2>2 · How much room?</h2>")
        room = gr.Radio(
            list(ROOMS),
            value=MEMORY,
            show_label=False,
            container=False,
            label="What limits the cache",
            elem_classes=["switch"],
            elem_id="decide-room",
            interactive=True,
        )
        size, info = SIZES[MEMORY]
        given = gr.Textbox(size, label="At most", info=info, elem_id="decide-size", interactive=True)
        with gr.Row():
            context = gr.Number(
                32_768, label="Context, tokens", precision=0, min_width=90, elem_id="decide-context", interactive=True
            )
            batch = gr.Number(8, label="Sequences", precision=0, min_width=70, elem_id="decide-batch", interactive=True)
        weights = gr.Textbox(
            label="Files of the weights to choose from",
            info="One a line; empty: the model's own. The largest that leaves room is chosen",
            lines=1,
            max_lines=4,
            visible=not settings().public,
            elem_id="decide-weights",
            interactive=True,
        )
    room.input(None, room, given, js=SIZE_JS, **SWIFT)
    return [room, given, context, batch, weights]


def _loss() -> list[Any]:
    words = [(f"{tier.word.capitalize()} (mean KLD up to {tier.kld:g})", tier.word) for tier in TIERS[:-1]]
    with gr.Column(elem_classes=["card", "question"], elem_id="decide-loss-card"):
        gr.HTML("<h2>3 · What may it lose, and where does it run?</h2>")
        tolerance = gr.Dropdown(
            words,
            value=TIERS[0].word,
            label="At most",
            info="A tier, a mean KLD in nats such as 0.02, or task:0.02, a share of right answers",
            allow_custom_value=True,
            elem_id="decide-tolerance",
            interactive=True,
        )
        engine = gr.Dropdown(
            [("Any", ANY), *engines()], value=ANY, label="Engine", elem_id="decide-engine", interactive=True
        )
        at_once = gr.Textbox(
            label="New tokens that it reads at once",
            info="Empty: as it takes by card. Layers with a window set aside room for them",
            visible=False,
            elem_id="decide-batched-tokens",
            interactive=True,
        )
        layers = gr.Checkbox(
            True,
            label="Try a policy of layers where no lane will do, or layers are at risk",
            elem_id="decide-layers",
            interactive=True,
        )
    engine.input(None, engine, at_once, js=AT_ONCE_JS, **SWIFT)
    return [tolerance, engine, layers, at_once]


def wire_form(panel: DecidePanel, fitting: gr.HTML, mine: gr.BrowserState, results: Results, decided: Any) -> None:
    """The estimate follows the form, and what fits of its model; and what is ``decided``, whose runs are there then."""

    def estimate(*values: Any) -> list[str]:
        *fields, own = values
        held = form_of(fields)
        return [estimate_html(held, own, results), fits_of(held)]

    def models(study: Any, now: Any, own: Any) -> Any:
        return models_of(str(study or "").strip(), str(now or ""), own, results)

    panel.study.change(models, [panel.study, panel.of_model, mine], panel.of_model, **SWIFT)
    gr.on(
        [*(field.change for field in panel.fields), decided],
        estimate,
        [*panel.fields, mine],
        [panel.estimate, fitting],
        **QUIET,
        trigger_mode="always_last",
        concurrency_limit=2,
    )


def models_of(study: str, now: str, mine: Any, results: Results) -> Any:
    """The picker of a study's models: seen where it has several; ``now``, the one that is picked, stays if it can."""
    try:
        demand_open(results.services, study, my_key(mine, study))
        found = results.get(study)
    except KvqError:
        return gr.update(choices=[], value=None, visible=False)
    names = {cell.model: cell.title for cell in found.plan.cells}
    picked = picked_model(found, now)
    return gr.update(choices=[(title, id) for id, title in names.items()], value=picked, visible=len(names) > 1)


def fits_of(held: DecideForm) -> str:
    """What fits of the form's model before anything is run; nothing of what cannot be read yet."""
    try:
        engine = None if held.engine in ("", ANY) else held.engine
        return (
            fitting_html(held.model, held.context, held.batch, engine, held.at_once) if held.source == PROMPTS else ""
        )
    except KvqError:
        return ""


def estimate_html(held: DecideForm, mine: Any, results: Results) -> str:
    """What stands above Start."""
    try:
        if held.is_empty:
            return f'<p class="muted">{NOTHING_YET}</p>'
        return quote_html(quote_form(held, my_key(mine, held.study.strip()), results))
    except KvqError as error:
        return f'<p class="warning refused">{safe(error)}</p>'
    except Exception as error:
        log_error("estimate of a decision failed", error)
        return '<p class="muted">No estimate.</p>'


def form_of(values: Any) -> DecideForm:
    """The form's values in the order of ``DecidePanel.fields``; what a browser sends may be anything."""
    source, way, text, file, skip, suite, n, seed, lengths, depths, last, *rest = values
    model, study, of_model, room, size, context, batch, tolerance, engine, layers, weights, at_once = rest
    texts = [str(value or "") for value in (text, file, lengths, depths)]
    prompts = PromptsForm(
        str(way), texts[0], texts[1], bool(skip), str(suite), n, seed, texts[2], texts[3], str(last or "")
    )
    return DecideForm(
        source=str(source),
        prompts=prompts,
        model=str(model or ""),
        study=str(study or ""),
        of_model=str(of_model or ""),
        room=str(room),
        size=str(size or ""),
        context=context,
        batch=batch,
        tolerance=str(tolerance or ""),
        engine=str(engine or ""),
        layers=bool(layers),
        weights=str(weights or ""),
        batched_tokens=str(at_once or ""),
    )


def choices(mine: Any) -> list[tuple[str, str]]:
    """This browser's studies as a picker has them."""
    return [(f"{each['title']} · {each['first']} · {each['id']}", each["id"]) for each in mine_of(mine)]
