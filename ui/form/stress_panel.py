"""The dials of function-preserving stress, closed until somebody wants them; whether it is on is always visible."""

from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.spec import Stress, parse_spec
from ui.form.controls import describe
from ui.form.stress import EXPLAINED, dial_text, stress_summary
from ui.form.values import STRESS, stress_of
from ui.html.escape import safe
from ui.service.services import SWIFT


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
