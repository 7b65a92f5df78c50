"""Check a run of one prompt on many: its lanes and model in the form of a study, with the prompts that ship for it."""

from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.presets import FOLDER
from ui.form.filling import CHECK
from ui.html.status import notice
from ui.service.access import open_run
from ui.service.services import Services
from ui.study.asked import OF_COMPARE, PASTE
from ui.study.form import FormPanel

PROMPTS = FOLDER / "table" / "prompts.jsonl"  # the reference table's twelve, long enough for every window
NEXT = "Check the link, or fill the form."


def check_values(panel: FormPanel, asked: dict[str, str], services: Services, kept: Any) -> list[Any]:
    """Of an address that names a run to check: a message, and values of the form's fields in their order."""
    fields: list[Any] = [gr.skip()] * len(panel.fields)
    if CHECK not in asked:
        return ["", *fields]
    try:
        record, _ = open_run(services, asked[CHECK], kept)
    except KvqError as error:
        return [notice("There is no run to check", str(error), NEXT), *fields]
    told: dict[Any, Any] = {
        panel.prompts.fields[0]: PASTE,
        panel.prompts.fields[1]: PROMPTS.read_text(encoding="utf-8"),
        panel.models: [record.spec["model"]],
        panel.lanes: OF_COMPARE,
        panel.new_tokens: record.spec["max_new_tokens"],
    }
    return ["", *(told.get(field, gr.skip()) for field in panel.fields)]
