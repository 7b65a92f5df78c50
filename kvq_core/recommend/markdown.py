"""The advice on one page, as Markdown for a pull request."""

import re
from collections.abc import Iterator, Sequence

from kvq_core.recommend.constraints import Advice, LaneCandidate
from kvq_core.recommend.policies import Compared, Grounds
from kvq_core.sizing.units import size_text

COSTLIEST = 6  # layers that are named
HEADER = ("lane", "cache", "mean KLD", "95 % interval", "fits", "why not")


def as_markdown(
    found: Advice, grounds: Grounds | None = None, page: str | None = None, decision: str | None = None
) -> str:
    """``grounds``: what it rests on, where that is at hand; ``page``: where links open runs, and the ``decision`` of
    that id."""
    parts = [f"# Which KV cache: {_escaped(found.answer)}", _asked(found)]
    if found.flags:
        parts.append(f"```sh\n{found.flags}\n```")
    parts += [_list("", found.reasons), found.separates or "", _list("Warnings", found.warnings)]
    parts.append(_list("What would help", found.helps))
    parts.append(_table(HEADER, [cells(each) for each in found.front]))
    parts += [f"## {title}\n\n{_table(head, rows)}" for title, head, rows in sections(grounds)]
    parts += [_worst(found, page), _list("Not tested", found.untested)]
    if page is not None and decision is not None:
        parts.append(f"[All of it on the page]({address(page, f'?decide={decision}')})")
    return "\n\n".join(filter(None, parts)) + "\n"


def address(page: str, link: str) -> str:
    """Where a link of the advice leads, on a page whose address may end in a slash."""
    return f"{page.rstrip('/')}/{link}"


def cells(each: LaneCandidate) -> tuple[str, ...]:
    """A lane in a table; its name with what marks it."""
    marks = ", policy of layers" if each.policy else ""
    mean = "-" if each.kld_mean is None else f"{each.kld_mean:.3g}"
    ends = "-" if each.kld_low is None else f"{each.kld_low:.3g} to {each.kld_high:.3g}"
    fits = {True: "yes", False: "no", None: "-"}[each.fits]
    front = " ★" if each.front else ""
    return f"{each.label}{front}{marks}", _taken(each), mean, ends, fits, each.why_not or ""


def _taken(each: LaneCandidate) -> str:
    beside = "".join(f" + {size_text(nbytes, 3)} {what}" for nbytes, what in each.beside)
    return "-" if each.bytes is None else size_text(each.bytes, 3) + beside


def question(found: Advice, model: str, study: str) -> str:
    """What was asked, with the names of model and study as the report writes them."""
    engine = f", {found.engine} {found.version}" if found.engine else ""
    room = f", {found.room}" if found.room else ""
    return (
        f"{model}, {found.batch} x {found.context:,} tokens{room}{engine}; study {study}, {found.prompts} prompts; "
        f"tolerated: {found.tolerance}."
    )


def _asked(found: Advice) -> str:
    said = question(found, _escaped(found.model), f"`{found.study}`")
    return f"{said} A star marks the front: no lane takes no more and loses no more."


def _list(title: str, lines: Sequence[str]) -> str:
    told = "\n".join(f"- {_escaped(line)}" for line in lines)
    return f"## {title}\n\n{told}" if title and told else told


def _worst(found: Advice, page: str | None) -> str:
    def run(link: str, id: str) -> str:
        return f"run `{id}`" if page is None else f"[run {id}]({address(page, link)})"

    told = [f"- {_escaped(e.prompt)}: {e.kld:.3g} nats, {run(e.link, e.run)}" for e in found.worst]
    return "\n".join(["## Worst prompts", "", *told]) if told else ""


def sections(found: Grounds | None) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """What an answer rests on as tables: title, head and rows."""
    if found is None:
        return
    if found.policy is not None:
        held = found.policy
        title = f"The policy of layers, scored on {held.scored} prompts and run on {held.unseen} others"
        yield title, ("", "cache", "predicted", "measured"), [_compared(each) for each in held.lanes]
    if found.scores:
        worst = sorted(found.scores, key=lambda each: -each.kld_mean)[:COSTLIEST]
        rows = [(each.format, each.tensor, str(each.layer), f"{each.kld_mean:.3g}") for each in worst]
        yield f"The costliest layers alone, over {found.scored} prompts", ("format", "", "layer", "KLD"), list(rows)
    if found.fits:
        sizes = list(found.fits[0].contexts)
        told = [(each.label, *(_tokens(each.contexts[size]) for size in sizes)) for each in found.fits]
        yield "Longest context that fits, in tokens", ("lane", *(f"{size} GB" for size in sizes)), list(told)


def _compared(each: Compared) -> tuple[str, ...]:
    predicted = "-" if each.predicted is None else f"{each.predicted:.3g}"
    return f"{each.what}: {each.label}", size_text(each.bytes, 3), predicted, f"{each.measured:.3g}"


def _tokens(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _row(told: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(each) for each in told)} |"


def _escaped(text: str) -> str:
    """What labels and prompts' names hold must not steer Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)
