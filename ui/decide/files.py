"""A decision as files: the one-page report as HTML and as Markdown, all of it as JSON."""

import hashlib
from collections.abc import Callable

from kvq_core.recommend.decision import Decision
from kvq_core.recommend.html import as_html
from kvq_core.recommend.markdown import as_markdown
from kvq_core.settings import settings
from ui.decide.answer import with_links

Made = Callable[[Decision, str], str]  # of a decision and the page's address, for links


def _report(make: Callable[..., str]) -> Made:
    return lambda decision, page: make(
        with_links(decision.advice, settings().public), decision.grounds, page, decision.id
    )


FILES: dict[str, tuple[str, Made]] = {
    "Report (HTML)": ("report.html", _report(as_html)),
    "Report (Markdown)": ("report.md", _report(as_markdown)),
    "Decision (JSON)": ("decision.json", lambda decision, page: decision.canonical),
}


def name_of(decision: Decision, page: str, ending: str) -> str:
    """Says all that decides the contents: what a visitor's request says of the page's address is for that address
    alone."""
    return f"decision-{decision.id}-{hashlib.sha256(page.encode()).hexdigest()}-{ending}"
