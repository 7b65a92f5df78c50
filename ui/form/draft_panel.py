"""The form kept in the browser: its controls as they stand there, its lanes as the server holds them."""

import json
from pathlib import Path
from typing import Any

import gradio as gr

from kvq_core.presets import presets
from ui.form.draft import draft_json, read_draft
from ui.form.lanes_panel import LanesPanel, redraw_lanes
from ui.form.setup_panel import Setup, question_html
from ui.form.values import FIELDS
from ui.service.services import SWIFT

# The address, the form and the server as the browser knows them; called once, when the page is opened.
VISIT_JS = (Path(__file__).parent.parent / "js" / "visit.js").read_text(encoding="utf-8")
KEEP_VALUES = f"""(...values) => window.kvqVisit?.keep({{
  values: Object.fromEntries({json.dumps(FIELDS)}.map((name, at) => [name, values[at]])),
}})"""
KEEP_LANES = "(text) => window.kvqVisit?.keep(JSON.parse(text))"


def create_draft() -> gr.Textbox:
    """Filled by the browser when the page is opened, and from then on with what of the form the server holds."""
    return gr.Textbox("", visible="hidden", elem_id="draft", show_label=False)


def wire_draft(draft: gr.Textbox, setup: Setup, lanes: LanesPanel) -> None:
    """Tell the browser of every change of the form."""
    gr.on([setup[name].change for name in FIELDS], None, setup.fields, None, js=KEEP_VALUES, **SWIFT)
    held = [lanes.lanes, setup.rest]
    gr.on([lanes.lanes.change, setup.rest.change], draft_json, held, draft, **SWIFT, trigger_mode="always_last")
    draft.change(None, draft, None, js=KEEP_LANES, **SWIFT)


def restore_form(raw: str) -> list[Any] | None:
    """Updates of the whole form as it was left; None where the browser kept none. A preset's question stands above its
    own prompt."""
    found = read_draft(raw)
    if found is None:
        return None
    values, lanes, rest = found
    prompt = values[FIELDS.index("prompt")]
    question = next((question_html(preset) for preset in presets().values() if preset.spec.prompt == prompt), "")
    return [question, *values, rest, *redraw_lanes(lanes, None)]
