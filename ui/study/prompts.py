"""The card of prompts: pasted, from a file, or tasks with an answer from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.limits import limits
from kvq_core.studies.sources import READERS
from kvq_core.studies.tasks import SUITES
from ui.html.escape import safe
from ui.html.numbers import size
from ui.service.services import LATEST
from ui.study.asked import NUMBERS, PASTE, WAYS

PLACEHOLDER = "A prompt a line, or JSON objects, one a line:\n" + '{"prompt": "...", "id": "...", "group": "..."}'

OF_LAST = "A last message of the assistant"
LAST = (("as each row says", ""), ("is the answer to score", "answer"), ("is context; answer once more", "context"))


@dataclass
class PromptsPanel:
    """``fields`` in the order of ``asked.Form`` up to ``last``; js/study.js writes ``file``."""

    fields: list[Any]
    about: gr.HTML

    @property
    def suite(self) -> Any:
        return self.fields[4]


def create_prompts(name: str = "study") -> PromptsPanel:
    """``name``: of the place, in the ids of its elements."""
    first = next(iter(SUITES))
    with gr.Column(elem_classes=["card", "prompts-card"], elem_id=f"{name}-prompts"):
        gr.HTML("<h2>Prompts</h2>")
        way = _ways(name)
        with gr.Column(elem_classes=["of-paste"]):
            text = gr.Textbox(
                label="Prompts",
                lines=7,
                max_lines=14,
                placeholder=PLACEHOLDER,
                elem_id=f"{name}-text",
                interactive=True,
            )
        with gr.Column(elem_classes=["of-file"]):
            gr.HTML(_chooser(name))
            file = gr.Textbox(visible="hidden", elem_id=f"{name}-file", show_label=False)
        with gr.Column(elem_classes=["of-text"]):
            skip = gr.Checkbox(False, label="Leave out lines that cannot be read", interactive=True)
            last = gr.Dropdown(list(LAST), value="", elem_id=f"{name}-last", label=OF_LAST, interactive=True)
        with gr.Column(elem_classes=["of-tasks"]):
            titles = [(kind.title, at) for at, kind in SUITES.items()]
            suite = gr.Dropdown(titles, value=first, label="Tasks", elem_id=f"{name}-suite", interactive=True)
            about = gr.HTML(_about(first))
            with gr.Row():
                n = gr.Number(20, label="Prompts", precision=0, min_width=80, interactive=True)
                seed = gr.Number(0, label="Seed", precision=0, min_width=80, interactive=True)
            options = [_option(first, option) for option in NUMBERS]
    panel = PromptsPanel([way, text, file, skip, suite, n, seed, *options, last], about)
    suite.input(_suite_chosen, suite, [about, *options], **LATEST)
    return panel


def _ways(name: str) -> gr.Radio:
    return gr.Radio(
        list(WAYS),
        value=PASTE,
        label="Where prompts come from",
        show_label=False,
        container=False,
        elem_classes=["switch", "ways"],
        elem_id=f"{name}-way",
        interactive=True,
    )


def _chooser(name: str) -> str:
    """A file is read by the browser and sent as text: this server takes no uploads."""
    most, kinds = limits().study_bytes, ",".join(READERS)
    return (
        f'<label class="file-chooser"><span>Choose a file</span><input type="file" accept="{kinds}" '
        f'data-file="{safe(name)}-file" data-most="{most}"><output>{", ".join(READERS)}; at most {size(most)}</output>'
        '</label><details class="about"><summary>Columns</summary><p>prompt or messages; optionally system, tools, '
        "last, continuation, answer, verifier, id, group. In CSV messages and tools stand as JSON; a .txt file holds a "
        "prompt a line. Logged calls, ShareGPT's conversations and lm-eval's samples are read, too.</p></details>"
    )


def _option(suite: str, name: str) -> gr.Textbox:
    """A suite's own option, empty for its default."""
    return gr.Textbox(label=name.capitalize(), lines=1, interactive=True, **_shown(suite, name))


def _shown(suite: str, name: str) -> dict[str, Any]:
    field = SUITES[suite].model_fields.get(name)
    if field is None:
        return {"visible": False}
    default: Sequence[float] = field.default
    return {"visible": True, "info": field.description, "placeholder": ", ".join(f"{value:g}" for value in default)}


def _about(suite: str) -> str:
    kind = SUITES[suite]
    return f'<p class="muted">{safe(kind.asks)} Judged by its answer; {safe(kind.source)}.</p>'


def _suite_chosen(suite: str) -> list[Any]:
    if suite not in SUITES:
        return [gr.skip()] * (1 + len(NUMBERS))
    return [_about(suite), *(gr.update(value="", **_shown(suite, name)) for name in NUMBERS)]
