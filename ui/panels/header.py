"""Product name, the model in use, and the way to each part of the page."""

import gradio as gr

from kvq_core.record.fields import Record
from ui.html.escape import safe

LINKS = (
    ("#left", "Compare"),
    ("#scorecard", "Scorecard"),
    ("#where", "Views"),
    ("#claims", "Claims"),
    ("#history", "History"),
    ("?learn=1", "Learn"),
)
OF_RESULTS = ("#scorecard", "#where")


def create_header(model: str) -> gr.HTML:
    return gr.HTML(markup(model), elem_id="header")


def markup(chip: str, over: bool = False) -> str:
    """The header; before a run is over its results are nowhere to go to."""
    links = "".join(
        f'<a role="link" aria-disabled="true" title="There once a run is done">{title}</a>'
        if target in OF_RESULTS and not over
        else f'<a href="{target}">{title}</a>'
        for target, title in LINKS
    )
    return (
        f'<header><a class="brand" href="?">KVQ Explorer</a><span class="chip">{safe(chip)}</span>'
        f'<nav aria-label="Parts of the page">{links}</nav></header>'
    )


def chip(record: Record) -> str:
    env = record.environment
    return f"{env.model_title} · {env.device} {env.dtype.removeprefix('torch.')}"
