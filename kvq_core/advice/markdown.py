"""The advice on one page, as Markdown for a pull request."""

import re
from collections.abc import Sequence

from kvq_core.advice.report import Advice, Candidate
from kvq_core.advice.sentences import size

HEADER = ("lane", "cache", "mean KLD", "95 % interval", "fits", "why not")


def as_markdown(found: Advice) -> str:
    parts = [f"# Which KV cache: {_escaped(found.answer)}", _asked(found)]
    if found.flags:
        parts.append(f"```sh\n{found.flags}\n```")
    parts += [_list("", found.reasons), found.separates or "", _list("Warnings", found.warnings)]
    parts.append(_list("What would help", found.helps))
    parts.append("\n".join([_row(HEADER), _row(["---"] * len(HEADER)), *(_row(cells(each)) for each in found.front)]))
    worst = [f"{each.prompt}: {each.kld:.3g} nats, run `{each.run}`" for each in found.worst]
    parts += [_list("Worst prompts", worst), _list("Not tested", found.untested)]
    return "\n\n".join(filter(None, parts)) + "\n"


def cells(each: Candidate) -> tuple[str, ...]:
    """A lane in a table; its name with what marks it."""
    marks = ", policy of layers" if each.policy else ""
    mean = "-" if each.kld_mean is None else f"{each.kld_mean:.3g}"
    ends = "-" if each.kld_low is None else f"{each.kld_low:.3g} to {each.kld_high:.3g}"
    fits = {True: "yes", False: "no", None: "-"}[each.fits]
    front = " ★" if each.front else ""
    return f"{each.label}{front}{marks}", size(each.bytes), mean, ends, fits, each.why_not or ""


def _asked(found: Advice) -> str:
    engine = f", {found.engine} {found.version}" if found.engine else ""
    room = f", {found.room}" if found.room else ""
    return (
        f"{_escaped(found.model)}, {found.batch} x {found.context:,} tokens{room}{engine}; study `{found.study}`, "
        f"{found.prompts} prompts; tolerated: {found.tolerance}. A star marks the front: no lane takes no more and "
        "loses no more."
    )


def _list(title: str, lines: Sequence[str]) -> str:
    told = "\n".join(f"- {_escaped(line)}" for line in lines)
    return f"## {title}\n\n{told}" if title and told else told


def _row(told: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(each) for each in told)} |"


def _escaped(text: str) -> str:
    """What labels and prompts' names hold must not steer Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)
