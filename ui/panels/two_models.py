"""What an empty page says first: one question and its formats on two models and on a mended file, with and without the
mean key."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from kvq_core.analysis.verdict import TIERS, Placed, verdict
from kvq_core.errors import KvqError
from kvq_core.pipeline.examples import packaged_store
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from ui.html.escape import safe, shorten
from ui.html.glossary import term
from ui.html.numbers import percent, significant
from ui.panels.tour import shipped_ids

RUNS = ("first-sight", "first-sight-qwen", "first-sight-mended")
PAPERS = "five-ideas"
LONGEST = 110  # characters of an answer
RUINED = 1.0  # nats of mean KLD from which an answer that is risky is ruined


@dataclass(frozen=True)
class Ran:
    """A run's lane and its tier, None where it has none."""

    lane: LaneRecord
    placed: Placed | None

    @property
    def kept(self) -> bool:
        """Whether it is surely no worse than the last tier but one."""
        return self.placed is not None and self.placed.worst < len(TIERS) - 1

    @property
    def ruined(self) -> bool:
        return self.placed is not None and not self.kept and _kld(self.lane) >= RUINED


@dataclass(frozen=True)
class FormatRow:
    """A format by its label, as each run's lane of it: as it is, and with the mean key subtracted, where the runs have
    that."""

    label: str
    plain: tuple[Ran, ...]
    centred: tuple[Ran, ...]


def format_rows(runs: Sequence[tuple[Record, Arrays]]) -> list[FormatRow]:
    """The formats that all runs have, in the first run's order."""
    rows = []
    for lane in runs[0][0].lanes:
        if lane.center == "none":
            own = [_same(*run, lane, "none") for run in runs]
            centred = [_same(*run, lane, "mean") for run in runs]
            if all(own):
                rows.append(FormatRow(lane.label, _there(own), _there(centred) if all(centred) else ()))
    return rows


def _same(record: Record, arrays: Arrays, like: LaneRecord, center: str) -> Ran | None:
    """A run's lane of the format of another, with its keys centred so."""
    wanted = (like.method, like.knobs, center, "done")
    for at, one in enumerate(record.lanes):
        if (one.method, one.knobs, one.center, one.status) == wanted:
            return Ran(one, verdict(record, arrays, at).placed)
    return None


def _there(lanes: list[Ran | None]) -> tuple[Ran, ...]:
    return tuple(lane for lane in lanes if lane is not None)


@cache
def two_models_html() -> str:
    """The card; empty where the runs do not ship."""
    ids = [shipped_ids().get(name) for name in RUNS]
    if not all(ids):
        return ""
    try:
        runs = tuple(packaged_store().load(run) for run in ids if run)
    except KvqError:
        return ""
    return _card(tuple(record for record, _ in runs), format_rows(runs), shipped_ids().get(PAPERS))


def _card(records: tuple[Record, ...], rows: list[FormatRow], papers: str | None) -> str:
    names, changed = [_name(record) for record in records], changed_bytes(records[-1])
    heads = "".join(f'<th scope="col">{safe(name)}</th>' for name in names)
    body = _reference(records, names) + "".join(_row(row, names) for row in rows)
    first, second, mended = (record.id for record in records)
    way = f'<a href="?run={safe(papers)}">The five papers</a>' if papers else ""
    return (
        '<section class="card two-models" aria-label="Two models"><p class="asked">One question, the same formats, '
        f"two models{', one of them also mended' if changed else ''}</p><h2>{headline(rows, names, changed)}</h2>"
        f'<p class="ask"><q>{safe(_question(records[0]))}</q></p>'
        '<label class="subtract"><input type="checkbox" id="subtract-mean"> Subtract the mean key before rounding '
        f"<small>{_cost(rows)}</small></label>"
        '<div class="scroll"><table class="plain"><thead><tr><th scope="col">Format</th>'
        f'<th scope="col">{term("bytes", "Memory")}</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="ways"><a href="?run={safe(first)}&amp;vs={safe(second)}">Both runs side by side</a>'
        f'<a href="?run={safe(mended)}">The mended file, whole run</a>{way}'
        '<a href="?learn=1">Take the tour</a></p></section>'
    )


def _name(record: Record) -> str:
    """The model as people know it; a mended file by the one that it was made from and is scored against."""
    told = record.environment.reference or record.environment
    name = told.model_title.split(" (")[0].removesuffix("-Instruct")
    return f"{name}, {changed} of its file changed" if (changed := changed_bytes(record)) else name


def changed_bytes(record: Record) -> str | None:
    """How much of its file was changed by mending, as the record says, such as ``794 bytes``; None of one that is as it
    was published."""
    found = re.search(r"mended for .*?([\d,]+ bytes) changed", record.environment.quantization or "")
    return found and found[1]


def _question(record: Record) -> str:
    """What is asked, without the notes before it."""
    return record.question.strip().splitlines()[-1]


def headline(rows: list[FormatRow], names: list[str], changed: str | None = None) -> str:
    """The format whose loss differs most between the first two models, and what helps there: subtracting the mean, and
    the third model, which is the second with so much of its file ``changed``."""
    row = max(rows, key=lambda row: _kld(row.plain[1].lane) / max(_kld(row.plain[0].lane), 1e-9))
    here, there = row.plain[:2]
    label, first, second = map(safe, (row.label, *names[:2]))
    if not here.kept or not there.ruined:
        return f"{label} has a KLD of {_loss(here.lane)} on {first} and of {_loss(there.lane)} on {second}."
    said = f"{label} keeps the answer on {first} and ruins it on {second}"
    helps = ["subtracting the mean key"] if row.centred and row.centred[1].kept else []
    if changed and row.plain[2].kept:
        helps.append(f"changing {changed} of the model's file")
    return f"{said}; there, {' or '.join(helps)} repairs it." if helps else f"{said}."


def _loss(lane: LaneRecord) -> str:
    """Its mean KLD in nats."""
    return significant(_kld(lane), 2)


def _cost(rows: list[FormatRow]) -> str:
    """What the toggle does to the memory of the formats that have it."""
    more = [row.centred[0].lane.memory.kv_ratio - row.plain[0].lane.memory.kv_ratio for row in rows if _measured(row)]  # type: ignore[union-attr]
    return f"memory grows by {100 * max(more):.2g} percentage points here" if more else ""


def _measured(row: FormatRow) -> bool:
    return bool(row.centred) and None not in (row.centred[0].lane.memory, row.plain[0].lane.memory)


def _kld(lane: LaneRecord) -> float:
    return (lane.metrics.kld_mean if lane.metrics else None) or 0.0


def _reference(records: tuple[Record, ...], names: list[str]) -> str:
    cells = "".join(
        f'<td data-model="{safe(name)}">{safe(shorten(record.reference.text, LONGEST))}</td>'
        for record, name in zip(records, names, strict=True)
    )
    return f'<tr class="full"><th scope="row">Full precision</th><td>100 %</td>{cells}</tr>'


def _row(row: FormatRow, names: list[str]) -> str:
    lanes = list(zip(names, row.plain, row.centred or row.plain, strict=True))
    memory = _either(_memory(row.plain[0].lane), _memory((row.centred or row.plain)[0].lane), bool(row.centred))
    cells = "".join(
        f'<td data-model="{safe(name)}">{_either(_answer(plain.lane), _answer(centred.lane), bool(row.centred))}</td>'
        for name, plain, centred in lanes
    )
    none = "" if row.centred else ' <small class="if-subtracted">as it is</small>'
    return f'<tr><th scope="row">{safe(row.label)}{none}</th><td>{memory}</td>{cells}</tr>'


def _either(plain: str, centred: str, has: bool) -> str:
    """Both states of the toggle, of which the stylesheet shows one."""
    return f'<span class="as-it-is">{plain}</span><span class="if-subtracted">{centred}</span>' if has else plain


def _memory(lane: LaneRecord) -> str:
    return percent(lane.memory.held_ratio) if lane.memory else ""


def _answer(lane: LaneRecord) -> str:
    """The text with what differs from full precision's marked, and its mean KLD."""
    if not lane.text:
        return f"<i>ends at once</i> <small>KLD {_loss(lane)}</small>"
    at = lane.metrics.first_divergence if lane.metrics else None
    same = "".join(lane.tokens if at is None else lane.tokens[:at])
    shown = shorten(same + "".join(lane.tokens[len(lane.tokens) if at is None else at :]), LONGEST)
    rest = shown[len(same) :]
    marked = f"{safe(shown[: len(same)])}<mark>{safe(rest)}</mark>" if rest else safe(shown)
    return f'<span class="said">{marked}</span> <small>KLD {_loss(lane)}</small>'
