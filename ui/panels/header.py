"""Product name, the places of the page, the model in use, the way to each part, and Share."""

import gradio as gr

from kvq_core.record.fields import Record
from kvq_core.settings import settings
from ui.html.escape import safe
from ui.html.glossary import glossary_html

# Addresses of places, by their names.
PLACES: tuple[tuple[str, str], ...] = (
    ("Compare", "?"),
    ("Study", "?study"),
    ("Decide", "?decide"),
    ("Verify", "?verify"),
)
PRIVATE = {"?verify"}  # places of private instances alone
OTHERS = {target[1:] for _, target in PLACES if target != "?"}  # as an address has them
LINKS = (
    ("#where", "Views"),
    ("#scorecard", "Scorecard"),
    ("#claims", "Claims"),
    ("#history", "History"),
    ("?learn=1", "Learn"),
)
# Before anything is drawn: which place the address is of; style sheets show that one alone.
PLACE_HEAD = """<script>
const asked = new URLSearchParams(location.search);
document.documentElement.dataset.at = ["study", "decide", "verify"].find((place) => asked.has(place)) ?? "";
</script>"""
OF_RESULTS = ("#scorecard", "#where")


def create_header(model: str) -> gr.HTML:
    return gr.HTML(markup(model), elem_id="header")


def markup(chip: str, over: bool = False) -> str:
    """The header with the words that are explained in it."""
    return f"{header_html(chip, over)}{glossary_html()}"


def header_html(chip: str, over: bool = False) -> str:
    """The header; before a run is over its results are nowhere to go to."""
    links = "".join(
        f'<a role="link" aria-disabled="true" title="There once a run is done">{title}</a>'
        if target in OF_RESULTS and not over
        else f'<a href="{target}">{title}</a>'
        for target, title in LINKS
    )
    return (
        f'<header><a class="brand" href="?">KVQ Explorer</a>{_places()}<span class="chip">{safe(chip)}</span>'
        f'<nav aria-label="Parts of the page">{links}</nav><button type="button" class="share-button" data-share '
        f'aria-controls="sharing" aria-expanded="false"{"" if over else " disabled"}>Share</button></header>'
    )


def _places() -> str:
    there = [place for place in PLACES if place[1] not in PRIVATE or not settings().public]
    links = "".join(f'<a href="{target}" data-place="{target[1:]}">{name}</a>' for name, target in there)
    return f'<nav class="places" aria-label="Places">{links}</nav>'


def chip(record: Record) -> str:
    env = record.environment
    return f"{env.model_title} · {env.layers} layers · {env.kv_heads} KV heads · {env.device}"
