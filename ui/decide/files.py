"""A decision as files: the one-page report as HTML and as Markdown, all of it as JSON."""

from collections.abc import Callable

from kvq_core.advice.decision import Decision
from kvq_core.advice.html import as_html
from kvq_core.advice.markdown import as_markdown

FILES: dict[str, tuple[str, Callable[[Decision], str]]] = {
    "Report (HTML)": ("report.html", lambda decision: as_html(decision.advice, decision.grounds)),
    "Report (Markdown)": ("report.md", lambda decision: as_markdown(decision.advice, decision.grounds)),
    "Decision (JSON)": ("decision.json", lambda decision: decision.canonical),
}


def name_of(decision: Decision, ending: str) -> str:
    """Says all that decides the contents."""
    return f"decision-{decision.id}-{ending}"
