"""What stress did: a stressed run and the same comparison without stress beside each other, lane by lane."""

from typing import Any

import gradio as gr

from kvq_core.analysis.two_runs import versus
from kvq_core.errors import KvqError
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.spec import Stress, parse_spec
from kvq_core.spec.links import encode
from ui.export.card import figures
from ui.html.escape import safe
from ui.html.numbers import significant
from ui.service.access import open_run
from ui.service.address import query
from ui.service.services import SWIFT, Services
from ui.words.views import finished_lanes

SEARCHED = 500  # newest runs of the store that are looked through
HEAD = ("lane", "KLD without", "KLD stressed", "flips without", "flips stressed")
BY_HAND = "It is too long for a link: switch stress off in the form and press Run."


def create_twin() -> gr.HTML:
    return gr.HTML("", elem_id="twin")


def wire_twin(place: gr.HTML, shown: gr.State, kept: gr.BrowserState, services: Services) -> None:
    """Look for a run's twin when it is shown."""

    def beside(shown: dict[str, Any], kept: Any) -> str:
        if not shown.get("run"):
            return ""
        try:
            record = services.records.get(shown["run"])[0]
            return twin_html(record, twin(record, services, kept))
        except KvqError:  # said where the run would be
            return ""

    shown.change(beside, [shown, kept], place, **SWIFT)


def twin(record: Record, services: Services, kept: Any) -> Record | None:
    """The newest run that this browser may open and that differs in stress alone, one of the two having none."""
    prompt = " ".join(record.question.split())
    lanes = tuple(lane.label for lane in record.lanes)
    for run in services.store.list(SEARCHED):
        if run.id == record.id or run.lanes != lanes or not prompt.startswith(run.prompt.removesuffix("…")):
            continue
        try:
            other = open_run(services, run.id, kept)[0]
        except KvqError:
            continue
        changes = versus(record, other).changes
        one_of_them = (record.stress is None) != (other.stress is None)
        if one_of_them and all(change.place.startswith("stress.") for change in changes):
            return other
    return None


def twin_html(record: Record, other: Record | None) -> str:
    """Both in a table; without a twin how to get it, where the run is the stressed one; else nothing."""
    if other is None:
        return _missing(record) if record.stress is not None else ""
    stressed, plain = (record, other) if record.stress is not None else (other, record)
    head = "".join(f'<th scope="col">{title}</th>' for title in HEAD)
    rows = "".join(_row(n, *pair) for n, pair in enumerate(zip(plain.lanes, stressed.lanes, strict=True)))
    return _card(
        f"<p>{safe(_worst(plain, stressed))} "
        f'<a href="?{safe(query(record.id, other.id))}">Both runs beside each other</a></p>'
        f'<div class="scroll" tabindex="0"><table class="plain"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _missing(record: Record) -> str:
    try:
        spec = parse_spec(record.spec).model_copy(update={"stress": Stress()})
        way = f'<a href="?c={safe(encode(spec))}">Set it up without stress</a>, then press Run: both stand here then.'
    except KvqError:
        way = BY_HAND
    return _card(
        f"<p>How each lane does without stress is not known here: the same comparison was not run unstressed. {way}</p>"
    )


def _card(body: str) -> str:
    return f'<div class="card twin"><h2>What stress did</h2>{body}</div>'


def _row(index: int, plain: LaneRecord, stressed: LaneRecord) -> str:
    (_, _, kld, flips), (_, _, stressed_kld, stressed_flips) = figures(plain), figures(stressed)
    cells = "".join(f"<td>{safe(cell)}</td>" for cell in (kld, stressed_kld, flips, stressed_flips))
    dot = f'<span class="dot lane-{index}"></span>'
    return f'<tr><th scope="row">{dot}{safe(plain.label)}</th>{cells}</tr>'


def _worst(plain: Record, stressed: Record) -> str:
    """The lane that stress moved furthest, in a sentence."""
    scored = {lane.label: lane.metrics.kld_mean for lane in finished_lanes(plain) if lane.metrics}
    moved = [
        (lane.metrics.kld_mean - before, lane.label, before, lane.metrics.kld_mean)
        for lane in finished_lanes(stressed)
        if lane.metrics and lane.metrics.kld_mean is not None and (before := scored.get(lane.label)) is not None
    ]
    if not moved:
        return "The same lanes with and without stress."
    _, label, before, after = max(moved)
    return f"Stress moves {label} furthest: mean KLD {significant(before, 2)} without, {significant(after, 2)} with it."
