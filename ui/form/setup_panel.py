"""The prompt card: model, presets, prompt, and the options of generation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import gradio as gr
from pydantic.fields import FieldInfo

from kvq_core.errors import KvqError
from kvq_core.models import available_models, is_offered, with_model
from kvq_core.presets import Preset, presets
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL, Capture, ComparisonSpec, Stress, parse_spec
from kvq_core.training.offer import possible_here
from ui.form.controls import describe
from ui.form.stress import EXPLAINED, dial_text, stress_summary
from ui.form.values import FIELDS, STRESS, stress_of
from ui.form.waiting import fills
from ui.html.escape import safe
from ui.service.services import SWIFT


@dataclass
class Setup:
    """``fields`` in the order of ui.form.values.FIELDS."""

    fields: list[gr.components.Component]
    rest: gr.State
    question: gr.HTML
    chips: dict[str, gr.Button]
    more: gr.Dropdown

    def __getitem__(self, name: str) -> Any:  # with the events of its class, which Component does not declare
        return self.fields[FIELDS.index(name)]


def create_setup(below_model: Callable[[], Any]) -> tuple[Setup, Any]:
    """The card, and what ``below_model`` puts under the model's picker."""
    known = {name: preset for name, preset in presets().items() if possible(preset)}
    with gr.Column(elem_classes=["card"], elem_id="setup"):
        gr.HTML("<h2>Prompt</h2>")
        choices = [(choice.title, choice.id) for choice in available_models()]
        model = gr.Dropdown(
            choices,
            value=choices[0][1] if choices else DEFAULT_MODEL,
            allow_custom_value=True,
            label="Model",
            elem_id="model",
            info="The models this instance runs."
            if settings().public
            else "Pick one, or type the id of a Hub model or the path of a .gguf file.",
            interactive=True,
        )
        beside = below_model()
        with gr.Row(elem_classes=["chips"]):
            chips = {
                name: gr.Button(chip_title(preset), size="sm", elem_classes=["chip-button"], elem_id=f"preset-{name}")
                for name, preset in known.items()
                if preset.chip
            }
        rest_of_them = [(chip_title(preset), name) for name, preset in known.items() if not preset.chip]
        more = gr.Dropdown(rest_of_them, value=None, label="More presets", visible=bool(rest_of_them), interactive=True)
        question = gr.HTML("", elem_id="question")
        prompt = gr.Textbox(
            label="Prompt",
            lines=6,
            max_lines=9,
            placeholder="Type a prompt, or pick a preset above.",
            elem_id="prompt",
            interactive=True,
        )
        options, stress = _options(), create_stress()
    return Setup([model, prompt, *options, *stress], gr.State({}), question, chips, more), beside


def _options() -> list[gr.components.Component]:
    with gr.Accordion("Generation options", open=False, elem_id="options"):
        with gr.Row():
            tokens, temperature, seed = _sampling()
        system = gr.Textbox(
            label="System prompt", lines=1, max_lines=4, placeholder="empty: the chat template's own", interactive=True
        )
        no_system = gr.Checkbox(False, label="No system prompt at all", interactive=True)
        chat = gr.Checkbox(True, label="Apply the chat template", interactive=True)
        ignore_eos = gr.Checkbox(False, label="Go on after the end-of-sequence token", interactive=True)
        continuation = gr.Textbox(
            label="Continuation",
            lines=2,
            max_lines=6,
            placeholder="empty: generate",
            info="Text to score through the caches instead of generating.",
            interactive=True,
        )
        expected = gr.Textbox(
            label="Expected in the answer",
            lines=1,
            max_lines=2,
            placeholder="empty: nothing",
            elem_id="expect",
            info="Every answer that holds this text gets a tick, the others a cross.",
            interactive=True,
        )
        captures = _declared(Capture.model_fields["detail"], "capture-detail")
        floors = _declared(ComparisonSpec.model_fields["floors"], "floors", "Floors")
        conversation = _conversation()
        gr.HTML('<div id="turns"></div>', padding=False)  # js/turns.js draws them
    return [
        *(system, no_system, chat, continuation, tokens, temperature, seed, ignore_eos, expected, captures, floors),
        conversation,
    ]


def _conversation() -> gr.Textbox:
    return gr.Textbox(
        label="Conversation",
        lines=2,
        max_lines=12,
        placeholder='[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]',
        elem_id="conversation",
        info="Messages in place of prompt and system prompt, as JSON, or turn by turn below; with tools an object of "
        "messages and tools. Earlier turns enter every cache, and later ones read them there.",
        interactive=True,
    )


def _sampling() -> list[gr.Number]:
    tokens = gr.Number(
        64,
        label="New tokens",
        precision=0,
        info="1 to 2,048.",
        elem_id="max-new-tokens",
        min_width=90,
        interactive=True,
    )
    temperature = gr.Number(0, label="Temperature", step=0.1, info="0 is greedy.", min_width=90, interactive=True)
    seed = gr.Number(0, label="Seed", precision=0, info="Shared by all rows.", min_width=90, interactive=True)
    return [tokens, temperature, seed]


def _declared(field: FieldInfo, elem_id: str, label: str | None = None) -> gr.Dropdown:
    """A choice with the words that its field is declared with."""
    return gr.Dropdown(
        list(get_args(field.annotation)),
        value=field.default,
        label=label or field.title,
        info=field.description,
        filterable=False,
        elem_id=elem_id,
        interactive=True,
    )


def possible(preset: Preset) -> bool:
    """Whether this instance runs the preset."""
    return runs_here(preset.spec)


def runs_here(spec: ComparisonSpec) -> bool:
    """Whether this instance offers the comparison's model, and has or trains what its lanes learn."""
    return is_offered(with_model(spec).model) and possible_here(spec)


def chip_title(preset: Preset) -> str:
    """A preset's title up to its colon: what fits on a chip."""
    return preset.title.split(":")[0]


def question_html(preset: Preset) -> str:
    """The preset's question and where to look for its answer."""
    points = "".join(f"<li>{safe(point)}</li>" for point in preset.look_at)
    where = f"<details><summary>Where to look</summary><ul>{points}</ul></details>"
    return f'<div class="ask"><p>{safe(preset.question)}</p>{where}</div>'


def wire_presets(setup: Setup, pick: Callable[[str], list[Any]], outputs: list[gr.components.Component]) -> None:
    """``pick(name)`` fills the form; the question stands above the prompt from then on."""
    for name, button in setup.chips.items():
        fills(button.click, lambda chosen=name: pick(chosen), None, outputs)

    def take(name: str | None) -> list[Any]:
        return [*([gr.skip()] * len(outputs) if name is None else pick(name)), None]

    fills(setup.more.input, take, setup.more, [*outputs, setup.more])


def create_stress() -> list[gr.components.Component]:
    """The controls in the order of ui.form.values.STRESS."""
    with gr.Accordion(heading(Stress()), open=False, elem_id="stress") as area:
        gr.HTML(f'<p class="muted">{safe(EXPLAINED)}</p>')
        with gr.Row(elem_classes=["knobs"]):
            controls: list[Any] = [  # Component does not declare the events of its classes
                (gr.Number if dial.type == "number" else gr.Textbox)(
                    dial_text(dial.default),
                    label=dial.title,
                    info=describe(dial),
                    elem_id=place.replace(".", "-"),
                    interactive=True,
                    min_width=110,
                )
                for place, dial in STRESS.items()
            ]
    gr.on([control.change for control in controls], _headed, controls, area, **SWIFT, trigger_mode="always_last")
    return controls


def heading(stress: Stress) -> str:
    return f"Stress · {stress_summary(stress)}"


def _headed(*values: Any) -> dict[str, Any]:
    """The accordion under a heading that says whether stress is on."""
    try:
        stress = parse_spec({"prompt": "-", "stress": stress_of(dict(zip(STRESS, values, strict=True)))}).stress
    except KvqError:
        return gr.update(label="Stress · needs a change", elem_classes=["wrong"])
    return gr.update(label=heading(stress), elem_classes=["on"] * stress.active)
