"""A study's lanes, tokens, groups and tasks as tables: names with their colours, means with their intervals."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvq_core.analysis.verdict import TIERS, tier_counts
from ui.html.escape import safe
from ui.html.glossary import hint
from ui.html.numbers import ABSENT, percent, plural, significant

Line = dict[str, Any]
COUNT = "Prompts"
HEAD = (
    "Lane",
    COUNT,
    "Mean KLD",
    "p95 of prompts",
    "Tail of tokens",
    "Flips",
    "Drafts kept",
    "Bytes",
    "Prompts by tier",
)
EXPLAINED = {"Mean KLD": "KLD", "Flips": "flips", "Bytes": "bytes", "Prompts by tier": "tier"}


def lanes_table(lines: Sequence[Line], caption: str = "") -> str:
    """Of one model, in the study's order. Where all lanes have as many prompts, the caption says how many."""
    counts = {line["prompts"] for line in lines if line["kld_mean"] is not None}
    each = len(counts) > 1 or any(line["failed"] for line in lines)
    if not each and counts:
        caption = " · ".join(filter(None, (caption, f"Over {plural(counts.pop(), 'prompt')}")))
    names = [name for name in HEAD if each or name != COUNT]
    head = [hint(EXPLAINED[name], name) if name in EXPLAINED else safe(name) for name in names]
    return table(head, (_lane(at, line, each) for at, line in enumerate(lines)), caption)


def table(head: Sequence[str], rows: Iterable[str], caption: str = "") -> str:
    """Finished cells of a head and finished rows."""
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    said = f"<caption>{safe(caption)}</caption>" if caption else ""
    body = "".join(rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="plain study-table">{said}<thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def name_cell(at: int, label: str) -> str:
    return f'<th scope="row"><span class="dot lane-{at}"></span>{safe(label)}</th>'


def _lane(at: int, line: Line, counted: bool) -> str:
    if line["kld_mean"] is None:
        failed = f"{line['failed']} failed" if line["failed"] else "nothing yet"
        rest = len(HEAD) - 2 + counted
        return f'<tr>{name_cell(at, line["label"])}<td class="none" colspan="{rest}">{failed}</td></tr>'
    worst = f'<small title="{safe(line["worst_prompt"])}">worst {significant(line["worst_kld"])}</small>'
    cells = [
        *([f"{line['prompts']:,}{_failed(line)}"] if counted else []),
        _with_interval(line, "kld", significant),
        f"<b>{significant(line['kld_p95'])}</b>{worst}",
        _tail(line),
        percent(line["flips"], 1),
        percent(line["acceptance"], 1),
        percent(line["kv_ratio"]),
    ]
    shown = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr>{name_cell(at, line['label'])}{shown}{_tiers(line)}</tr>"


def _tail(line: Line) -> str:
    if line["tail"] is None:
        return ABSENT
    ends = "" if line["tail_low"] is None else f", {significant(line['tail_low'])} to {significant(line['tail_high'])}"
    return f"<b>{significant(line['tail'])}</b><small>p{line['tail_rank']:g}{ends}</small>"


def _failed(line: Line) -> str:
    return f' <small class="error">{line["failed"]} failed</small>' if line["failed"] else ""


def _tiers(line: Line) -> str:
    """Shares of prompts as a bar of three parts, and in words, with how many have too few positions for a verdict."""
    shares = [(tier, line["tiers"][tier.word]) for tier in TIERS]
    parts = "".join(f'<i class="{tier.tone}" style="width:{100 * share:.1f}%"></i>' for tier, share in shares if share)
    said = ", ".join(f"{count} {word}" for count, word in tier_counts(line["tiers"], line["prompts"]))
    return f'<td class="tiers"><span class="tier-bar" aria-hidden="true">{parts}</span><small>{safe(said)}</small></td>'


def tokens_table(lines: Sequence[Line], labels: Sequence[str]) -> str:
    """Mean KLD by how sure the reference is of its next token, with flips, and of tokens of structure and all others;
    nothing where nothing is scored. ``labels``: of all lanes, whose places give colours."""
    done = [line for line in lines if line["kld_mean"] is not None]
    if not done:
        return ""
    first = done[0]
    shares = [(f"{bucket['low']:g} to {bucket['high']:g}", bucket["share"]) for bucket in first["confidence"]]
    marked = first["structural_share"]
    shares += [("structural", marked), ("all others", 1 - marked)]
    head = ["Lane", *(f"{safe(name)}<small>{percent(share)}</small>" for name, share in shares)]
    return table(head, (_tokens(labels.index(line["label"]), line) for line in done))


def _tokens(at: int, line: Line) -> str:
    parts = [(bucket["kld_mean"], bucket["flips"]) for bucket in line["confidence"]]
    parts += [(line["structural_kld"], None), (line["other_kld"], None)]
    shown = "".join(f"<td>{_part(kld, flips)}</td>" for kld, flips in parts)
    return f"<tr>{name_cell(at, line['label'])}{shown}</tr>"


def _part(kld: float | None, flips: float | None) -> str:
    if kld is None:
        return ABSENT
    return f"<b>{significant(kld)}</b>" + ("" if flips is None else f"<small>{percent(flips, 1)} flips</small>")


def groups_table(lines: Sequence[Line], labels: Sequence[str]) -> str:
    """Mean KLD by group of prompts, a column a lane; nothing where prompts have no groups."""
    groups = list(dict.fromkeys(line["group"] for line in lines))
    found = {(line["group"], line["label"]): line for line in lines}
    if not groups:
        return ""
    head = ["Group", "Prompts", *(_lane_head(at, label) for at, label in enumerate(labels))]
    return table(head, (_group(group, labels, found) for group in groups))


def _lane_head(at: int, label: str) -> str:
    return f'<span class="dot lane-{at}"></span>{safe(label)}'


def _group(group: str, labels: Sequence[str], found: dict[tuple[str, str], Line]) -> str:
    own = [found.get((group, label)) for label in labels]
    count = max((line["prompts"] for line in own if line), default=0)
    cells = "".join(f"<td>{_with_interval(line, 'kld', significant)}</td>" for line in own)
    return f'<tr><th scope="row">{safe(group)}</th><td>{count}</td>{cells}</tr>'


def _with_interval(line: Line | None, name: str, shown: Any) -> str:
    mean = line and line.get(f"{name}_mean", line.get(name))
    if line is None or mean is None:
        return ABSENT
    low, high = line[f"{name}_low"], line[f"{name}_high"]
    return f"<b>{shown(mean)}</b>" + ("" if low is None else f"<small>{shown(low)} to {shown(high)}</small>")


def tasks_table(lines: Sequence[Line], labels: Sequence[str]) -> str:
    """Of the tasks that full precision gets right, how many each lane does; nothing where no prompt has an answer."""
    if not lines:
        return ""
    groups = list(dict.fromkeys(line["group"] for line in lines))
    found = {(line["group"], line["label"]): line for line in lines}
    head = ["Tasks", "Asked", "Full precision", *(_lane_head(at, label) for at, label in enumerate(labels))]
    return table(head, (_tasks(group, labels, found) for group in groups))


def _tasks(group: str, labels: Sequence[str], found: dict[tuple[str, str], Line]) -> str:
    own = [found.get((group, label)) for label in labels]
    first = next(line for line in own if line)
    cells = "".join(f"<td>{_with_interval(line, 'right', percent)}</td>" for line in own)
    base = _with_interval(first, "reference", percent)
    return f'<tr><th scope="row">{safe(group or "all")}</th><td>{first["asked"]}</td><td>{base}</td>{cells}</tr>'
