"""Two runs beside each other: chosen from the history or given as a link, told in tables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from kvq_core.analysis.two_runs import Versus, versus
from kvq_core.analysis.two_specs import Change
from kvq_core.errors import KvqError, StoreError
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.record.subset import drawn_of
from kvq_core.settings import settings
from ui.export.card import figures
from ui.figures.two_runs import Run, grids_of, rates_of, strips_of, there
from ui.html.copying import COPY_JS, copy_box
from ui.html.escape import safe, shorten
from ui.html.numbers import ABSENT, plural
from ui.html.status import notice
from ui.html.verdict import verdict
from ui.panels.history import entries_of
from ui.selection import Selection, read_selection
from ui.service.access import open_run
from ui.service.address import link, query
from ui.service.services import QUIET, SWIFT, Services
from ui.views.view import Drawing, Slot

FAIR = "Same model, prompt and reference text: the figures of the two may be ranked against each other."
HEAD = ("K / V bits", "size", "KLD", "flips", "verdict")
LISTED = 30
SHOWN = 8  # fields that differ; two grids of lanes differ in more than a screen of a phone holds
_IN_TEXT = re.compile(r"(?:^|[?&]run=)([0-9a-f]{16})(?:$|[&#\s])")


@dataclass
class Beside:
    more: gr.Accordion
    other: gr.Dropdown
    compare: gr.Button
    results: gr.HTML
    figures: gr.HTML


def create_versus() -> Beside:
    with gr.Accordion("Compare with another run", open=False, visible=False, elem_id="versus") as more:
        with gr.Row(elem_id="versus-choice"):
            other = gr.Dropdown(
                [],
                label="A run of this browser, or a link or id",
                allow_custom_value=True,
                elem_id="versus-run",
                interactive=True,
                scale=4,
            )
            compare = gr.Button("Compare", size="sm", elem_id="versus-go", scale=0, min_width=100)
        found = gr.HTML("", js_on_load=COPY_JS, elem_id="versus-found")
        both = gr.HTML("", elem_id="versus-figures")
    return Beside(more, other, compare, found, both)


def wire_versus(
    panel: Beside, shown: gr.State, kept: gr.BrowserState, selection: Sequence[Any], services: Services
) -> None:
    """Offer runs when the panel opens; compare when asked to, or when the address says so; figures of both follow the
    page's selection."""

    def offer(shown: dict[str, Any], kept: Any) -> Any:
        return gr.update(choices=_choices(shown.get("run"), kept, services))

    def compare(shown: dict[str, Any], other: Any, kept: Any, request: gr.Request) -> str:
        return _told(shown.get("run"), other, kept, request, services)

    def linked(shown: dict[str, Any], kept: Any, request: gr.Request) -> list[Any]:
        """A run has come into view; with another beside it where the link names one."""
        if not shown.get("run") or shown.get("stays"):
            return [gr.skip()] * 3
        if not (other := shown.get("vs")):
            return [gr.update(visible=True, open=False), gr.update(value=None), ""]
        told = _told(shown["run"], other, kept, request, services)
        return [gr.update(visible=True, open=True), gr.update(value=str(other)[:200]), told]

    def draw(results: str, shown: dict[str, Any], other: Any, kept: Any, *at: Any) -> str:
        if not results or not shown.get("run"):
            return ""
        try:
            runs = services.records.drawn(shown), open_run(services, parse_run_id(other), kept)
        except KvqError:  # the table says so
            return ""
        return figures_html(*runs, read_selection(runs[0][0], *at))

    inputs = [panel.results, shown, panel.other, kept, *selection]
    moved = [panel.results.change, *(part.change for part in selection)]
    gr.on(moved, draw, inputs, panel.figures, **QUIET, trigger_mode="always_last", concurrency_limit=2)
    panel.more.expand(offer, [shown, kept], panel.other, **SWIFT)
    panel.compare.click(compare, [shown, panel.other, kept], panel.results, **SWIFT)
    shown.change(linked, [shown, kept], [panel.more, panel.other, panel.results], **SWIFT)


def figures_html(one: Run, other: Run, at: Selection) -> str:
    """Both runs on the same scales, at one selection: of a model of another depth, at the layer that lies as deep."""
    one, other = drawn_of(*one), drawn_of(*other)
    kv_head, layer = at.kv_head(one[0]), there(at.layer, one[0], other[0])
    rows = (
        (f"KLD of every token, token {at.token}",) * 2,
        strips_of(one, other, at.token),
        tuple(f"Keys, relative error: layer {where}" for where in (at.layer, layer)),
        grids_of(one, other, at.layer, kv_head),
    )
    rate = rates_of((one, other))
    parts = [] if rate is None else [_figures({"versus-rate": ("KLD against bits: A full, B hollow", rate)})]
    for number, (titles, pair) in enumerate(zip(rows[::2], rows[1::2], strict=True)):
        told = ((n, f"{n}: {title}", figure) for n, title, figure in zip("AB", titles, pair, strict=True))
        parts.append(_figures({f"versus-{number}{n}": (title, f) for n, title, f in told if isinstance(f, go.Figure)}))
    return "".join(parts)


def _figures(drawn: Mapping[str, tuple[str, go.Figure]]) -> str:
    held = Drawing("", {name: figure for name, (_, figure) in drawn.items()})
    return f'<div class="plots">{"".join(Slot(name, title).html(held) for name, (title, _) in drawn.items())}</div>'


def parse_run_id(text: Any) -> str:
    """The run id in what a person gave: an id, or a link to a run. Raises StoreError."""
    given = str(text or "").strip()
    found = _IN_TEXT.search(given)
    if found is None:
        raise StoreError(
            f"{shorten(given, 60)!r} names no run. Pick one from the list, or give a link with ?run= or its 16 "
            "hexadecimal characters."
        )
    return found[1]


def _choices(run: str | None, kept: Any, services: Services) -> list[tuple[str, str]]:
    """This browser's runs, and on a private instance what else is stored."""
    found = {e["id"]: f"{e['when']} · {e['name'] or e['prompt']} · {e['lanes']}" for e in entries_of(kept)}
    if not settings().public:
        try:
            for stored in services.store.list(LISTED):
                told = (
                    f"{stored.created[:16].replace('T', ' ')} · {stored.prompt} · {plural(len(stored.lanes), 'lane')}"
                )
                found.setdefault(stored.id, told)
        except KvqError:
            pass  # the history is there all the same
    return [(shorten(told, 110), id) for id, told in found.items() if id != run]


def _told(run: str | None, other: Any, kept: Any, request: gr.Request, services: Services) -> str:
    try:
        second = parse_run_id(other)
        if run is None or second == run:
            raise StoreError("That is the run shown already; give another one.")
        (one, own), (two, theirs) = services.records.get(run), open_run(services, second, kept)
    except KvqError as error:
        return notice("There is nothing to compare with", str(error), "The run shown is as it was.")
    return versus_html(one, two, versus(one, two), (own, theirs), link(one.id, request, two.id), query(one.id, two.id))


def versus_html(
    one: Record, other: Record, found: Versus, arrays: tuple[Arrays, Arrays], address: str, follow: str
) -> str:
    """Both runs, whether it is fair, what was asked differently, and the lanes side by side."""
    fair = "".join(f"<li>{safe(why)}</li>" for why in found.unfair)
    judged = (
        f'<div class="notice warn"><b>Not a fair comparison</b><ul>{fair}</ul></div>'
        if fair
        else f'<p class="fair">{safe(FAIR)}</p>'
    )
    return (
        f"{copy_box('Link to these two', address, follow=follow)}"
        f'<div class="two">{_run(one, "A")}{_run(other, "B")}</div>{judged}'
        f"<p>{safe(_texts(one, other, found))}</p><h2>Lanes</h2>{_lanes(one, other, found, arrays)}"
        f"<h2>What differs</h2>{_changes(found)}"
    )


def _run(record: Record, name: str) -> str:
    prompt = shorten(record.question, 90)
    return (
        f'<div><b>{name}</b> <a href="?run={safe(record.id)}">{safe(prompt)}</a><small>{safe(record.id)} · '
        f"{safe(record.created[:16].replace('T', ' '))} · {safe(record.environment.model_title)}</small></div>"
    )


def _texts(one: Record, other: Record, found: Versus) -> str:
    if found.same_text:
        return f"The reference texts are equal, all {plural(len(one.reference.token_ids), 'token')} of them."
    lengths = f"{len(one.reference.token_ids)} and {len(other.reference.token_ids)} tokens"
    if not found.same_tokens:
        return f"The reference texts ({lengths}) differ from their first token on."
    return f"The reference texts ({lengths}) are equal up to token {found.same_tokens} and differ from there."


def _lanes(one: Record, other: Record, found: Versus, arrays: tuple[Arrays, Arrays]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", *HEAD))
    rows = ""
    for n, pair in enumerate(found.pairs):
        label = f'<span class="dot lane-{n}"></span>{safe(pair.label)}'
        rows += (
            f'<tr class="first"><th scope="row" rowspan="2">{label}</th>{_cells("A", one, arrays[0], pair.one)}</tr>'
        )
        rows += f"<tr>{_cells('B', other, arrays[1], pair.other)}</tr>"
    table = f'<table class="plain versus"><thead><tr><th scope="col">lane</th>{head}</tr></thead><tbody>{rows}</tbody>'
    return f'<div class="scroll" tabindex="0">{table}</table></div>'


def _cells(name: str, record: Record, arrays: Arrays, lane: LaneRecord | None) -> str:
    if lane is None:
        return f'<td>{name}</td><td colspan="{len(HEAD)}" class="muted none">no such lane</td>'
    found = verdict(record, arrays, next(i for i, own in enumerate(record.lanes) if own is lane))
    numbers = "".join(f"<td>{safe(value)}</td>" for value in figures(lane))
    return f'<td>{name}</td>{numbers}<td><span class="badge {found.tone}">{safe(found.word)}</span></td>'


def _changes(found: Versus) -> str:
    if not found.changes:
        return '<p class="muted">Nothing: the two comparisons are the same.</p>'
    first, more = found.changes[:SHOWN], found.changes[SHOWN:]
    folded = f"<details><summary>{plural(len(more), 'more field')}</summary>{_fields(more)}</details>" if more else ""
    return _fields(first) + folded


def _fields(changes: Sequence[Change]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{safe(c.place)}</th><td>{_value(c.one)}</td><td>{_value(c.other)}</td></tr>'
        for c in changes
    )
    head = '<tr><th scope="col">field</th><th scope="col">A</th><th scope="col">B</th></tr>'
    table = f'<table class="plain changes"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _value(value: Any) -> str:
    return ABSENT if value is None else safe(shorten(str(value), 160)) or ABSENT
