"""Verdicts: a tier for each lane with its numbers beside the noise floor, why, what to try, how to use it elsewhere."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from kvq_core.analysis.expected import expectation_sentence as expected
from kvq_core.analysis.explain import explain
from kvq_core.analysis.floors import above_floor, floor_title, floors, lane_of
from kvq_core.analysis.plans import shape_of
from kvq_core.analysis.scored import At, pooled, tail
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import DRAFT_TOKENS, LaneRecord, Record
from kvq_core.spec import Lane
from ui.form.lanes import append_lane
from ui.form.lanes_panel import LanesPanel, redraw_lanes
from ui.html.cards import tick
from ui.html.escape import prose, safe
from ui.html.glossary import hint
from ui.html.numbers import ABSENT, join_words, percent, plural, significant
from ui.html.verdict import EXPLAINED, near_ties_html, remarks, verdict
from ui.html.waterfall import ask_html, waterfall_html
from ui.selection import Selection
from ui.service.services import LANES, Services
from ui.views.take_away import take_away
from ui.views.view import Drawing, View, create_page, create_words

NumberText = Callable[[float], str]
# field, name, how it is shown, unit of the raw value
NATS: tuple[NumberText, str] = (lambda v: significant(v, 2), "nats")
MEASURES: tuple[tuple[str, str, NumberText, str], ...] = (
    ("kld_mean", "KLD mean", *NATS),
    ("tail", "", *NATS),  # its name says which percentile it is
    ("flip_rate", "flips", lambda v: percent(v, 1), "share of positions"),
    ("above_floor", "above the floor", percent, "share of positions"),
    ("acceptance", "drafts kept", lambda v: percent(v, 1), "share of drafted tokens"),
    ("tokens_a_step", "tokens a step", lambda v: f"{v:.2f}", f"tokens a pass, {DRAFT_TOKENS} drafted"),
)
WORDS = {"KLD mean": "KLD", "flips": "flips", "above the floor": "noise floor"}  # by their glossary's words
DRAFTING = (
    "Drafts kept: the share of its drafted tokens that the full-precision cache would keep if this one drafted for it "
    f"(speculative sampling at temperature 1). Tokens a step: what one pass of it then yields, {DRAFT_TOKENS} drafted."
)


def create_verdicts() -> View:
    return View("verdicts", create_words(), [create_page(["verdicts"])], compute)


def compute(record: Record, arrays: Arrays, at: Selection) -> Drawing:
    cards = [_card(record, arrays, index, lane) for index, lane in enumerate(record.lanes)]
    said = [EXPLAINED, "One prompt and one model: a verdict about this run.", _drafting(record)]
    close = f'<p class="muted">{safe(" ".join(filter(None, said)))}</p>'
    html = {"verdicts": f'<div class="verdicts">{_stress(record)}{"".join(cards)}</div>{close}'}
    return Drawing(_said(record, arrays), html=html, tables={"verdicts": _rows(record, arrays)})


def _rows(record: Record, arrays: Arrays) -> list[list[Any]]:
    """The numbers of the cards: see ui.views.export."""
    return [
        [lane_of(record, at).label, name, word, value, "measure", "verdict", unit]
        for at in (*floors(record), *range(len(record.lanes)))
        for word in [verdict(record, arrays, at).word if isinstance(at, int) else ""]
        for name, value, _, unit in lane_figures(record, arrays, at)
    ] + [
        [lane.label, cause.label, "of its KLD", cause.gain, "cause", "", "nats"]
        for index, lane in enumerate(record.lanes)
        for cause in getattr(record.causes(index), "causes", ())
    ]


def lane_figures(record: Record, arrays: Arrays, at: At) -> list[tuple[str, float | None, NumberText, str]]:
    """The figures of a lane or a floor: name, raw value, how it is shown, unit."""
    m, high = lane_of(record, at).metrics, tail(pooled(arrays, at, "kld"))
    named = {"tail": f"KLD {high.name if high else 'tail'}"}
    values = {"tail": high.value if high else None, "above_floor": above_floor(record, arrays, at)}
    return [
        (named.get(field, name), values[field] if field in values else getattr(m, field, None), shown, unit)
        for field, name, shown, unit in MEASURES
    ]


def _said(record: Record, arrays: Arrays) -> str:
    """How many lanes stand where."""
    found: dict[str, list[str]] = {}
    for index, lane in enumerate(record.lanes):
        found.setdefault(verdict(record, arrays, index).word, []).append(lane.label)
    floor = record.noise_floor.metrics
    said = "; ".join(f"{word}: {join_words(labels)}" for word, labels in found.items())
    scored = floor.n_scored if floor else 0
    noise = f", where rounding to fp16 alone costs {significant(floor.kld_mean, 2)} nats" if floor else ""
    verdicts = f"{said[:1].upper()}{said[1:]}. Read on {plural(scored, 'scored position')}{noise}."
    return " ".join(filter(None, [expected(record), verdicts]))


def _drafting(record: Record) -> str:
    """What the figures of drafting are, or that the run is too old to have them."""
    measured = [lane.metrics for lane in record.lanes if lane.metrics and lane.metrics.n_scored]
    if measured and all(m.acceptance is None for m in measured):
        return "Drafts kept and tokens a step: not measured by the version of this run; run it again to have them."
    return DRAFTING if measured else ""


def _stress(record: Record) -> str:
    """What stress did to the reference itself: the lanes suffer on a model that computes the same."""
    told = getattr(record, "stress", None)
    if told is None:
        return ""
    return (
        f'<div class="verdict stress"><h3>Stress</h3><p>{safe(told.sentence)}</p><p class="muted">Full precision, '
        f"stressed against unstressed, at {plural(told.positions, 'position')}: KLD at most "
        f"{significant(told.kld_max, 2)} nats (a larger one than {significant(told.tolerance, 2)} refuses the run), "
        f"{'the same' if told.same_tokens else 'not always the same'} most probable token.</p></div>"
    )


def _card(record: Record, arrays: Arrays, index: int, lane: LaneRecord) -> str:
    found = verdict(record, arrays, index)
    table = _table(record, arrays, index) if lane.metrics else f'<p class="error">{safe(lane.error or "")}</p>'
    told = explain(record, arrays, index)
    because = "".join(f"<li>{prose(said)}</li>" for said in (found.sentence, *told.sentences, *remarks(lane)) if said)
    ties = near_ties_html(lane, "li")  # alone of these is told of tokens that are brushed
    return (
        f'<section class="verdict lane-{record.number(index)}" data-of="{index}" '
        f'aria-label="Verdict of {safe(lane.label)}">'
        f'<div class="top"><h3>{safe(lane.label)}</h3>{tick(record, lane.text) if lane.status == "done" else ""}'
        f'<span class="badge {found.tone}" data-number="verdict" title="{safe(found.why)}">{safe(found.word)}</span>'
        "</div>"
        f'{table}<ul class="reasons">{because}</ul>{ties and f"<ul>{ties}</ul>"}{_why(record, index)}'
        f"{_suggestion(index, told.suggestion, told.because)}"
        f"{take_away(lane, shape_of(record).kinds, record.id)}</section>"
    )


def _table(record: Record, arrays: Arrays, index: int) -> str:
    """A lane's figures beside the floors'."""
    shown = (index, *floors(record))
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("this lane", *(floor_title(record, at) for at in floors(record)))
    )
    rows = ""
    told = zip(*(lane_figures(record, arrays, at) for at in shown), strict=True)
    for (field, *_), figures in zip(MEASURES, told, strict=True):
        if all(value is None for _, value, *_ in figures):
            continue  # the run is too old, which is said below; or too short
        places = [
            f'data-number="{field}"',
            *(f'data-number="{field}" data-floor="{at}"' for at in range(len(shown) - 1)),
        ]
        cells = "".join(
            f"<td {place}>{ABSENT if value is None else show(value)}</td>"
            for place, (_, value, show, _) in zip(places, figures, strict=True)
        )
        name = figures[0][0]
        rows += f'<tr><th scope="row">{hint(WORDS[name], name) if name in WORDS else name}</th>{cells}</tr>'
    table = f'<table class="plain floors"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _why(record: Record, index: int) -> str:
    """What its damage comes from, or the button that has that measured."""
    lane, found = record.lanes[index], record.causes(index)
    if found is not None:
        return waterfall_html(index, found)
    measured = lane.status == "done" and lane.quantized and lane.metrics is not None and lane.metrics.n_scored
    return ask_html(index, lane.label) if measured else ""


def _suggestion(index: int, lane: Lane | None, because: str) -> str:
    if lane is None:
        return ""
    return (
        f'<p class="try">Compare with a lane that changes one thing: {safe(because)}.</p>'
        f'<button type="button" class="plain-button" data-suggest="{index}">'
        f"Add lane: {safe(lane.label)}</button>"
    )


def wire_suggestions(box: gr.Textbox, lanes: LanesPanel, shown: gr.State, services: Services) -> None:
    """The button under a verdict adds its lane to the form; Run is left to the person."""

    def add(raw: str, form: list[dict[str, Any]], shown: dict[str, Any]) -> list[Any]:
        number = (raw or "").partition(" ")[0]
        if not shown.get("run") or not (number.isascii() and number.isdigit() and len(number) < 4):
            return [gr.skip()] * len(lanes.outputs)
        record, arrays = services.records.drawn(shown)
        if int(number) >= len(record.lanes):
            return [gr.skip()] * len(lanes.outputs)
        suggested = explain(record, arrays, int(number)).suggestion
        if suggested is None:
            return [gr.skip()] * len(lanes.outputs)
        return redraw_lanes(append_lane(form, suggested), None)

    box.change(add, [box, lanes.lanes, shown], lanes.outputs, **LANES)
