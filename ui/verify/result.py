"""What a verification found: the verdict, delivered beside predicted by prompt, the worst tokens, and its files."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from kvq_core.servers.verification import Report
from kvq_core.servers.verified import EXPORTS, lines
from ui.html.escape import safe, visible
from ui.html.numbers import ABSENT, significant
from ui.html.study_tables import table
from ui.service.services import Services
from ui.study.files import download_updates

TONES = {"as expected": "good", "cannot tell": "warn"}
OF_PROMPTS = "Mean KLD in nats by prompt: what the server's cache costs, and what this format should."
BY_PROMPT = ("Prompt", "Delivered", "Predicted", "Floor", "Flips")
OF_WORST = ("Prompt", "Token", "KLD", "After", "Baseline", "Server")


def answer_html(report: Report) -> str:
    """The verdict with its figures, then what to know of them."""
    _, *rest = lines(report)
    tone = "bad" if report["beyond_tolerance"] else TONES.get(report["verdict"], "bad")
    asked = " · ".join((report["server"]["model"], report["server"]["engine"], report["format"] or "no format given"))
    said = "".join(f"<li>{safe(each.strip())}</li>" for each in rest)
    return (
        f'<section class="study-answer card"><p class="muted">{safe(asked)}</p><h1><span class="chip {tone}">'
        f"{safe(report['verdict'])}</span> {safe(report['why'])}</h1><ul>{said}</ul></section>"
    )


def tables_html(report: Report) -> str:
    """The prompts as they were asked, and the positions where the server is farthest off."""
    prompts = (
        _row(each["id"], *map(_nats, (each["kld"], each["predicted"], each["floor"])), _of(each["flips"], each))
        for each in report["prompts"]
    )
    worst = (
        _row(
            each["prompt"],
            str(each["position"]),
            _nats(each["kld"]),
            *(f"<code>{safe(visible(each[name]))}</code>" for name in ("before", "baseline", "server")),
        )
        for each in report["worst"]
    )
    return (
        f'<h3 class="figure-title">Delivered beside predicted</h3>{table(BY_PROMPT, prompts, OF_PROMPTS)}'
        f'<h3 class="figure-title">Worst tokens</h3>{table(OF_WORST, worst)}'
    )


def _row(name: str, *cells: str) -> str:
    return f'<tr><th scope="row">{safe(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _nats(value: float | None) -> str:
    return ABSENT if value is None else significant(max(0.0, value), 2)


def _of(flips: int, prompt: dict[str, Any]) -> str:
    return f"{flips} of {prompt['n_scored']}"


FILES: dict[str, tuple[str, Callable[[Report], str]]] = {
    "Report (Markdown)": (".md", EXPORTS[".md"]),
    "JUnit (XML)": (".xml", EXPORTS[".xml"]),
    "Verification (JSON)": (".json", lambda report: json.dumps(report, ensure_ascii=False)),
}


def files_of(report: Report, services: Services) -> list[Any]:
    """Updates of the download buttons."""
    made = {f"verification-{report['id']}{end}": partial(_encoded, make, report) for end, make in FILES.values()}
    return download_updates(services, made)


def _encoded(make: Callable[[Report], str], report: Report) -> bytes:
    return make(report).encode(errors="replace")
