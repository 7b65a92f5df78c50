"""The run of an empty page, as part of the page itself: it is read before anything is asked of the server."""

from typing import Any, Protocol

import gradio as gr

from ui.panels.answer import answer_html
from ui.panels.answers import AnswerCards, finished_cards
from ui.panels.instruments import Instruments, show_instruments
from ui.panels.welcome import home
from ui.service.services import Services
from ui.views.selectors import place_selectors
from ui.views.tabs import Views


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
    page.answer.value = answer_html(*drawn)
    page.cards.cards.value = finished_cards(*drawn, titled=0)
    for part, html in zip(page.instruments.outputs, show_instruments(record, arrays, shown), strict=True):
        part.value = html
    place_selectors(page.views.selectors, *drawn)
