"""The run of an empty page, as part of the page itself: it is read before anything is asked of the server, and its
answer, as that of a run whose link is opened, before any script is there."""

from functools import cache
from typing import Any, Protocol

import gradio as gr

from kvq_core.errors import KvqError
from ui.export.answer import answer_html
from ui.form.filling import stored_line
from ui.html.cards import finished_cards
from ui.html.escape import safe
from ui.html.sheet import plain_css
from ui.panels.answers import AnswerCards
from ui.panels.header import chip, header_html
from ui.panels.instruments import Instruments, show_instruments
from ui.panels.two_models import two_models_html
from ui.panels.welcome import home
from ui.service.access import open_run
from ui.service.services import Services
from ui.views.selectors import place_selectors
from ui.views.tabs import Views

# What Gradio's own style, which is not there yet, adds.
COVER = """:host { position: absolute; inset: 0 0 auto; z-index: 1000; } * { box-sizing: border-box; }
.gradio-container { min-height: 100vh; background: var(--page); font: 13px/1.4 var(--sans); } p { line-height: 1.625; }
.early-page { margin-top: 12px !important; } header { line-height: 1.4; } .brand { padding: 2px 8px; }
.answer-first, .status { line-height: 1.4; } .status { margin-bottom: 12px; }
@media (max-width: 900px) { .early-left { display: none; } }"""
# Until the page's own answer is there, or it says that it has none.
GO = """(() => {
  const own = document.getElementById("early");
  const { run } = own.dataset;
  const theme = new URLSearchParams(location.search).get("__theme");
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  own.shadowRoot?.firstElementChild.classList.toggle("dark", dark);
  const look = () => {
    const found = document.querySelector(`#answer [data-run="${run}"]`)?.checkVisibility();
    if (found || document.querySelector("#status .notice.bad")) own.remove();
    else requestAnimationFrame(look);
  };
  look();
})()"""
ON_ITS_WAY = "The lanes, their texts and every view are on their way."


class Parts(Protocol):
    """Of the page, what one reads first."""

    answer: gr.HTML
    cards: AnswerCards
    instruments: Instruments
    views: Views


def place_home(page: Parts, services: Services) -> None:
    """Before the page is served. Tooltips of tokens come with the rest: they are most of the cards' size."""
    shown: dict[str, Any] | None = home()
    if shown is None:
        return
    (record, arrays), drawn = services.records.get(shown["run"]), services.records.drawn(shown)
    page.answer.value = two_models_html() + answer_html(record, arrays, shown)
    page.cards.cards.value = finished_cards(*drawn, titled=0)
    for part, html in zip(page.instruments.outputs, show_instruments(record, arrays, shown), strict=True):
        part.value = html
    place_selectors(page.views.selectors, *drawn)


def early_html(services: Services, run: str | None = None) -> str:
    """What stands in the body of an empty page, or of the link of a run that anybody may open: the header and the
    answer, with the style they need, apart from the rest, whose styles come later. Gradio puts the page together in the
    browser from half a megabyte of scripts, which takes long on a slow line. Empty where there is no such run."""
    shown = home() if run is None else {"run": run}
    if shown is None:
        return ""
    try:
        record, _ = open_run(services, shown["run"], None)
        first = two_models_html() if run is None else ""
        answer = first + answer_html(*services.records.whole(shown), shown).replace(
            ' id="answer-said" tabindex="-1"', ""
        )
    except KvqError:
        return ""
    header = header_html(chip(record), over=True).replace(' data-place=""', ' aria-current="page"')
    told = "" if run is None else stored_line(record)
    left = f'<div class="early-left"><p class="card muted">{ON_ITS_WAY}</p></div>'
    page = f'<div inert>{header}</div><div class="early-page">{left}<div class="prose">{told}{answer}</div></div>'
    return (
        f'<div id="early" data-run="{safe(record.id)}"><template shadowrootmode="open"><div><style>{_style()}</style>'
        f'<div class="gradio-container">'
        f"{page}</div></div></template></div><script>{GO}</script>"
    )


@cache
def _style() -> str:
    return plain_css().replace(":root{", ":host{") + COVER
