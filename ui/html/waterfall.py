"""What a lane's damage comes from, part by part, as bars that go down from its mean KLD to what nothing explains."""

from kvq_core.analysis.causes import LEAST_WINDOWS
from kvq_core.analysis.why import OWN_WINDOWS, Cause, Kind, Why
from ui.html.escape import safe
from ui.html.numbers import join_words, significant, size

GROUPS: tuple[tuple[Kind, str], ...] = (("tensors", "Keys and values"), ("layers", "Thirds of the layers"))
NOISE = "In a batch of its own its mean KLD is {here} nats, {recorded} as recorded: batches differ by as much."


def waterfall_html(index: int, found: Why) -> str:
    """The causes of lane ``index`` of those drawn, and what gains most for a byte as lanes to compute."""
    most = max([found.kld, *(cause.kld for cause in found.causes)]) or 1.0
    groups = "".join(_group(found, kind, title, most) for kind, title in GROUPS if found.of(kind))
    windows = "".join(f"<p>{safe(_window(cause))}</p>" for cause in found.of("windows"))
    if found.own_windows:
        windows += f"<p>{OWN_WINDOWS}</p>"
    noise = NOISE.format(here=significant(found.kld, 3), recorded=significant(found.recorded, 3))
    return (
        f'<div class="why"><h4>What it comes from</h4>{groups}{windows}{_ranked(index, found)}'
        f'<p class="muted">{safe(noise)}</p></div>'
    )


def ask_html(index: int, label: str) -> str:
    """The button that has it measured."""
    return (
        f'<button type="button" class="plain-button" data-act="why" data-lane="{index}" aria-label="What does the '
        f'damage of {safe(label)} come from?">What does it come from?</button>'
    )


def _group(found: Why, kind: Kind, title: str, most: float) -> str:
    """One way to take the lane apart: from all of its KLD down, and what is left; below 0 parts gain the same twice."""
    rows, level = [_bar("as it is", found.kld, 0.0, found.kld, most, "whole")], found.kld
    for cause in found.of(kind):
        rows.append(_bar(cause.label, -cause.gain, level - cause.gain, level, most, "part", 2 * cause.se))
        level -= cause.gain
    rows.append(_bar("not explained" if level >= 0 else "explained twice", abs(level), 0.0, abs(level), most, "rest"))
    return f'<table class="waterfall"><caption>{safe(title)}</caption><tbody>{"".join(rows)}</tbody></table>'


def _bar(name: str, value: float, start: float, end: float, most: float, kind: str, error: float = 0.0) -> str:
    """A row: its name, a bar from ``start`` to ``end`` on the common scale, its nats; ``error`` two standard ones."""
    low, high = (100 * min(1.0, max(0.0, edge / most)) for edge in sorted((start, end)))
    sign = "−" if value < 0 else "+" if kind == "part" else ""
    said, more = f"{sign}{significant(abs(value), 2)}", f" ± {error:.1g}" if error else ""
    return (
        f'<tr class="{kind}{" more" * (kind == "part" and value > 0)}"><th scope="row">{safe(name)}</th>'
        f'<td class="bars"><i style="left:{low:.1f}%;width:{max(0.6, high - low):.1f}%"></i></td>'
        f"<td>{said}{more}</td></tr>"
    )


def _window(cause: Cause) -> str:
    saves = "save" if cause.gain >= 0 else "cost"
    error = f" ± {2 * cause.se:.1g}" if cause.se else ""
    nats = f"{significant(abs(cause.gain), 2)}{error} nats"
    beyond = " beyond the smallest its method has" if cause.label == LEAST_WINDOWS else ""
    return f"Its full-precision windows{beyond} {saves} {nats}, in {size(cause.more_bytes)}."


def _ranked(index: int, found: Why) -> str:
    """What gains more than chance moves, the most for a byte first; each a lane that one click computes."""
    best = found.ranked
    if not best:
        return "<p>No part gains more than twice its standard error.</p>"
    buttons = "".join(
        f'<button type="button" class="try-lane" data-act="cause" data-lane="{index}" data-cause="{safe(cause.label)}">'
        f"<span>{safe(cause.label[:1].upper() + cause.label[1:])}</span><small>−{significant(cause.gain, 2)} nats for "
        f"{size(cause.more_bytes)} more: {significant(1e6 * cause.gain / cause.more_bytes, 2)} a MB</small></button>"
        for cause in best
    )
    return f"<p>Most gained for a byte first: {safe(join_words([cause.label for cause in best]))}.</p>{buttons}"
