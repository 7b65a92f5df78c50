"""The left column of a study: prompts, models and lanes, the estimate, Start and Cancel."""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.logs import log_error
from kvq_core.models import available_models
from kvq_core.record.store import Store
from kvq_core.settings import settings
from kvq_core.studies.tasks import SUITES
from ui.form.lanes import LaneForm, title
from ui.form.lanes_panel import bundle_choices
from ui.html.escape import safe, shorten
from ui.service.services import QUIET, SWIFT
from ui.study.asked import FILE, OF_COMPARE, PASTE, TASKS, Form, study_of
from ui.study.prompts import PromptsPanel, create_prompts
from ui.study.quote import quote, quote_html

NOTHING_YET = "Give prompts, and what the study will take is said here."
NEW_TOKENS = 64
# Enough for a right answer of the tasks that are picked. Said by the browser: an answer of the server's could come
# after another number was typed.
TOKENS_JS = (
    f"(way, suite) => way === {json.dumps(TASKS)} "
    f"? {json.dumps({name: kind.new_tokens for name, kind in SUITES.items()})}[suite] ?? {NEW_TOKENS} : {NEW_TOKENS}"
)


@dataclass
class FormPanel:
    """``fields`` in the order of ``asked.Form``."""

    prompts: PromptsPanel
    models: gr.Dropdown
    lanes: gr.Dropdown
    of_compare: gr.HTML
    new_tokens: gr.Number
    estimate: gr.HTML
    notice: gr.HTML
    start: gr.Button
    cancel: gr.Button

    @property
    def fields(self) -> list[Any]:
        return [*self.prompts.fields, self.models, self.lanes, self.new_tokens]


def create_form() -> FormPanel:
    prompts = create_prompts()
    with gr.Column(elem_classes=["card"], elem_id="study-lanes-card"):
        gr.HTML("<h2>Lanes and models</h2>")
        lanes = gr.Dropdown(
            [("The lanes of Compare", OF_COMPARE), *bundle_choices()],
            value=OF_COMPARE,
            label="Lanes",
            elem_id="study-lanes",
            interactive=True,
        )
        of_compare = gr.HTML("", elem_id="study-of-compare")
        known = [(choice.title, choice.id) for choice in available_models()]
        models = gr.Dropdown(
            known,
            value=[choice for _, choice in known[:1]],
            multiselect=True,
            allow_custom_value=not settings().public,
            label="Models",
            elem_id="study-models",
            interactive=True,
        )
        tokens = gr.Number(NEW_TOKENS, label="New tokens", precision=0, elem_id="study-new-tokens", interactive=True)
    with gr.Column(elem_classes=["card", "starts"], elem_id="study-start-card"):
        estimate = gr.HTML(f'<p class="muted">{NOTHING_YET}</p>', elem_id="study-estimate")
        message = gr.HTML("", elem_id="study-notice")
        start = gr.Button("Start", variant="primary", elem_id="study-start")
        cancel = gr.Button("Cancel", visible=False, elem_id="study-cancel")
    return FormPanel(prompts, models, lanes, of_compare, tokens, estimate, message, start, cancel)


def wire_form(panel: FormPanel, compare_lanes: gr.State, store: Store, shown: Any) -> None:
    """The estimate follows the form, and a study that is ``shown``, whose cells are there then; tasks bring their
    number of new tokens."""
    inputs = [*panel.fields, compare_lanes]
    gr.on(
        [*(field.change for field in panel.fields), shown],
        partial(estimate_of, store),
        inputs,
        [panel.estimate, panel.of_compare],
        **QUIET,
        trigger_mode="always_last",
        concurrency_limit=2,
    )
    way, suite = panel.prompts.fields[0], panel.prompts.suite
    gr.on([way.input, suite.input], None, [way, suite], panel.new_tokens, js=TOKENS_JS, **SWIFT)


def form_of(values: tuple[Any, ...]) -> Form:
    """The form's values in the order of ``FormPanel.fields``, as what a browser sends may be anything."""
    way, text, file, skip, suite, n, seed, lengths, depths, last, models, lanes, tokens = values
    texts = [str(value or "") for value in (text, file, lengths, depths)]
    return Form(
        str(way),
        texts[0],
        texts[1],
        bool(skip),
        str(suite),
        n,
        seed,
        texts[2],
        texts[3],
        str(last or ""),
        tuple(str(model) for model in models or ()),
        str(lanes),
        tokens,
    )


def is_empty(form: Form) -> bool:
    """Whether no prompts are given yet."""
    return (form.way == PASTE and not form.text.strip()) or (form.way == FILE and not form.file)


def estimate_of(store: Store, *values: Any) -> list[Any]:
    """The estimate of the form, and the lanes that it takes from Compare."""
    *fields, compare_lanes = values
    form = form_of(tuple(fields))
    lanes = of_compare_html(compare_lanes) if form.lanes == OF_COMPARE else ""
    if is_empty(form):
        return [f'<p class="muted">{NOTHING_YET}</p>', lanes]
    try:
        asked = study_of(form, compare_lanes)
        return [quote_html(quote(asked.spec, store), asked.broken), lanes]
    except KvqError as error:
        return [f'<p class="warning refused">{safe(error)}</p>', lanes]
    except Exception as error:
        log_error("estimate of a study failed", error)
        return ['<p class="muted">No estimate.</p>', lanes]


def of_compare_html(lanes: list[LaneForm]) -> str:
    """The lanes of Compare by name."""
    items = "".join(
        f'<li><span class="dot lane-{at}"></span>{safe(shorten(title(lane), 40))}</li>' for at, lane in enumerate(lanes)
    )
    return f'<ul class="of-compare">{items}</ul>' if items else '<p class="warning">Compare has no lanes.</p>'
