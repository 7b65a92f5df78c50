"""A study as text: its lanes in columns, what else is known of them, tasks, groups and pairs."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvq_core.analysis.verdict import tier_counts
from kvq_core.cli.output import columns
from kvq_core.studies.summary import Line

if TYPE_CHECKING:
    from kvq_core.studies.result import StudyResult

PAIRS = 40  # of lanes that are printed
GROUPS = 8  # of prompts that stand beside each other
_HEADER = ("prompts", "mean KLD", "95 % interval", "p95", "worst", "flips", "acceptance", "cache")
_FURTHER = ("tail of tokens", "prompts by tier", "KLD of structure", "of other tokens", "storage floor", "kernel floor")


def describe_study(result: "StudyResult") -> str:
    """The lanes in columns, what can be said of pairs, and what a reader must know."""
    told = result.summary()
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in told["cells"].items())
    lanes = told["lanes"]
    done = [line for line in lanes if line["kld_mean"] is not None]
    parts = [[f"study {told['id']}: cells {counts}"], _columns(_HEADER, lanes, _line)]
    parts += [_columns(_FURTHER, done, _further), _by_confidence(done), _groups(told["groups"])]
    parts += [_tasks(told["tasks"]), _recall(told["recall"]), _positions(told["positions"]), _slopes(done)]
    several = len({line["model"] for line in lanes}) > 1
    every = [*told["pairs_across"], *told["pairs"]]
    compared = [_named(pair, several) for pair in every if pair["p"] is not None]
    rest = len(compared) - PAIRS
    parts.append([*compared[:PAIRS], *([f"and {rest} more pairs of lanes: --json has all."] if rest > 0 else [])])
    parts.append([f"{flip['a']} against {flip['b']} flips with the model." for flip in told["flips_with_model"]])
    parts.append([*told["notes"], *(f"failed: {each['run']}: {each['why']}" for each in told["failed"][:10])])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _columns(head: Sequence[str], lines: list[Line], cells: Callable[[Line], Sequence[str]]) -> list[str]:
    """A row a lane of a model; nothing where there is none."""
    rows = [(line["model"], line["label"], *cells(line)) for line in lines]
    return columns([("model", "lane", *head), *rows]) if rows else []


def _line(lane: Line) -> tuple[str, ...]:
    failed = f", {lane['failed']} failed" if lane["failed"] else ""
    prompts = f"{lane['prompts']}{failed}"
    if lane["kld_mean"] is None:
        return (prompts, *"-" * 7)
    figures = (f"{lane[name]:.4g}" for name in ("kld_p95", "worst_kld"))
    shares = (_figure(lane[name], ".1%") for name in ("flips", "acceptance", "kv_ratio"))
    return (prompts, f"{lane['kld_mean']:.4g}", _ends(lane, "kld", ".4g"), *figures, *shares)


def _further(lane: Line) -> tuple[str, ...]:
    """What the page's table of lanes has beside, and the floors that the lane stands on."""
    tail = "-"
    if lane["tail"] is not None:
        ends = "" if lane["tail_low"] is None else f" ({_ends(lane, 'tail', '.3g')})"
        tail = f"p{lane['tail_rank']:g} {lane['tail']:.3g}{ends}"
    tiers = ", ".join(f"{count} {word}" for count, word in tier_counts(lane["tiers"], lane["prompts"]))
    names = ("structural_kld", "other_kld", "storage_floor", "kernel_floor")
    return (tail, tiers, *(_figure(lane[name], ".3g") for name in names))


def _by_confidence(lines: list[Line]) -> list[str]:
    """Mean KLD and flips by how sure the reference is of its next token."""

    def cells(line: Line) -> list[str]:
        held = line["confidence"]
        return [f"{_figure(each['kld_mean'], '.3g')} ({_figure(each['flips'], '.1%')})" for each in held]

    buckets = [f"{bucket['low']:g} to {bucket['high']:g}" for bucket in lines[0]["confidence"]] if lines else []
    rows: list[tuple[str, ...]] = []
    for line in lines:
        if line["model"] not in {row[0] for row in rows}:
            shares = (f"{bucket['share']:.0%}" for bucket in line["confidence"])
            rows.append((line["model"], "share of tokens", *shares))
        rows.append((line["model"], line["label"], *cells(line)))
    titled = "Mean KLD (flips) where the reference's top probability is"
    return [titled, *columns([("model", "lane", *buckets), *rows])] if lines else []


def _groups(lines: list[Line]) -> list[str]:
    """Mean KLD by group of prompts."""
    groups = dict.fromkeys((line["group"] for line in lines), 0)
    for line in lines:
        groups[line["group"]] = max(groups[line["group"]], line["prompts"])
    shown = list(groups)[:GROUPS]
    held = {(line["model"], line["label"], line["group"]): line for line in lines}
    lanes = [{"model": model, "label": label} for model, label in dict.fromkeys(place[:2] for place in held)]

    def cells(lane: Line) -> list[str]:
        own = [held.get((lane["model"], lane["label"], group)) for group in shown]
        return ["-" if line is None else f"{line['kld_mean']:.4g}{_around(line)}" for line in own]

    found = _columns([f"{group} ({groups[group]})" for group in shown], lanes, cells)
    rest = len(groups) - len(shown)
    more = [f"and {rest} more groups: --json has all."] if rest else []
    return ["Mean KLD by group of prompts (of so many):", *found, *more] if found else []


def _around(line: Line) -> str:
    return "" if line["kld_low"] is None else f" ({_ends(line, 'kld', '.3g')})"


def _tasks(lines: list[Line]) -> list[str]:
    """Of the tasks that full precision gets right, how many each lane does, and how many it gets right itself."""
    judged = [line for line in lines if line["group"] == ""]

    def cells(line: Line) -> tuple[str, ...]:
        base = f"{line['reference']:.0%} of {line['asked']} ({_ends(line, 'reference', '.0%')})"
        return f"{_figure(line['right'], '.0%')} of {line['counted']}", _ends(line, "right", ".0%"), base

    return _columns(("tasks right", "95 % interval", "full precision"), judged, cells)


def _recall(lines: list[Line]) -> list[str]:
    """Of what full precision recalls at a length and depth of the text, how much each lane does."""
    depths = sorted({line["depth"] for line in lines})
    held = {(line["model"], line["label"], line["words"], line["depth"]): line for line in lines}
    rows = [
        {"model": model, "label": label, "words": words} for model, label, words in dict.fromkeys(k[:3] for k in held)
    ]

    def cells(row: Line) -> list[str]:
        own = [held.get((row["model"], row["label"], row["words"], depth)) for depth in depths]
        tokens = next(line["tokens"] for line in own if line is not None)
        return [f"{tokens:,.0f}", *("-" if line is None else _right(line) for line in own)]

    found = _columns(["tokens", *(f"{depth:.0%}" for depth in depths)], rows, cells)
    return ["Recalled of what full precision recalls, by depth in the text:", *found] if found else []


def _right(line: Line) -> str:
    """Of how many that count, how many are right; of how many asked none counts."""
    if line["right"] is None:
        return f"0 of 0 ({line['asked']} asked)"
    return f"{round(line['right'] * line['counted'])} of {line['counted']}"


def _positions(lines: list[Line]) -> list[str]:
    """Mean KLD by the position that reads the cache, in powers of two."""
    firsts = sorted({line["first"] for line in lines})
    held = {(line["model"], line["label"], line["first"]): line for line in lines}
    lanes = [{"model": model, "label": label} for model, label in dict.fromkeys(place[:2] for place in held)]

    def cells(lane: Line) -> list[str]:
        own = [held.get((lane["model"], lane["label"], first)) for first in firsts]
        return ["-" if line is None else f"{line['kld_mean']:.3g}" for line in own]

    found = _columns([f"from {first:,}" for first in firsts], lanes, cells)
    return ["Mean KLD by position in the text:", *found] if found else []


def _slopes(lines: list[Line]) -> list[str]:
    """Of long answers, how KLD rises over their steps."""

    def cells(line: Line) -> tuple[str, ...]:
        return f"{line['kld_slope']:+.3g}", _ends(line, "kld_slope", "+.3g")

    return _columns(
        ("KLD over 1,000 steps", "95 % interval"), [line for line in lines if line["kld_slope"] is not None], cells
    )


def _named(pair: Line, several: bool) -> str:
    """What can be said of two lanes, on which of several models."""
    return f"{pair['model']}: {pair['sentence']}" if several and pair["model_b"] is None else pair["sentence"]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _ends(line: Line, of: str, form: str) -> str:
    return "-" if line[f"{of}_low"] is None else f"{line[f'{of}_low']:{form}} to {line[f'{of}_high']:{form}}"
