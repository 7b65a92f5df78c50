"""What one can do where one looks: the lanes that are offered there, and what came of those that were tried."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.analysis.acts import Act, Effect
from kvq_core.analysis.scored import UNSCORED, has_steps
from kvq_core.record.fields import Record
from ui.html.escape import safe
from ui.html.numbers import percent, significant, size


@dataclass(frozen=True)
class TriedLane:
    """A lane of a run that was added to the run shown; ``effect`` None where no lane is known that it changes, or the
    two were not scored on the same tokens."""

    run: str
    label: str
    effect: Effect | None


CANCEL = '<button type="button" class="link-button" data-act="cancel">Cancel</button>'


def offers_html(record: Record, index: int, layer: int, offered: Sequence[Act]) -> str:
    """The lanes offered for lane ``index`` of those drawn, each computed with one click; which lane can be chosen."""
    lanes = [at for at, lane in enumerate(record.lanes) if lane.quantized and lane.status == "done"]
    if not lanes:
        return ""
    choices = "".join(
        f'<option value="{at}"{" selected" * (at == index)}>{safe(record.lanes[at].label)}</option>' for at in lanes
    )
    buttons = "".join(
        f'<button type="button" class="try-lane" id="act-{act.name}" data-act="{act.name}" data-lane="{index}">'
        f"<span>{safe(act.says)}</span>"
        f"<small>{safe(act.because)}</small></button>"
        for act in offered
    )
    known = "Every change that is known to help here is a lane of this run."
    said = known if has_steps(record) else f"No change can be compared here: {UNSCORED}."
    none = f'<p class="muted">{safe(said)}</p>'
    return (
        f'<div class="acts-box"><h2>What if <span>at layer {layer}</span></h2><label class="act-lane">'
        '<span>one thing changes in</span> <select id="act-lane" data-act-lane aria-label="Lane that is changed">'
        f"{choices}</select></label>{buttons or none}</div>"
    )


def leads_html(parent: str) -> str:
    """Where a run that is a lane added to another leads."""
    said = f'This lane was added to <a href="?run={safe(parent)}">run {safe(parent)}</a>: try more there.'
    return f'<div class="acts-box"><h2>What if</h2><p class="muted">{said}</p></div>'


def tried_html(tried: Sequence[TriedLane]) -> str:
    """What came of each lane that was tried, the newest first, with a link of its own and a way back."""
    items = "".join(map(_tried, reversed(tried)))
    return f'<ul class="tried" aria-label="Tried">{items}</ul>' if items else ""


def before_after(found: Effect | None) -> str:
    """``mean KLD 0.36 → 0.21 (−0.15 ± 0.02), +4 KB``, or that there is nothing to compare."""
    if found is None:
        return "added later; no lane is scored on the same tokens that it changes"
    sure = "" if found.sure else ", within what chance moves"
    flips = "" if None in found.flips else f" · flips {_moved(*map(percent, found.flips))}"
    more = f"{'+' if found.more_bytes >= 0 else '−'}{size(abs(found.more_bytes))}"
    change = f"{'−' if found.gain >= 0 else '+'}{significant(abs(found.gain), 2)} ± {2 * found.se:.1g}"
    digits = 2 if abs(found.gain) > 0.1 * found.before else 3  # so many that they show the change
    klds = _moved(significant(found.before, digits), significant(found.after, digits))
    return f"mean KLD {klds} ({change}{sure}){flips} · {more}"


def _moved(before: str, after: str) -> str:
    """``22 % → 21 %``, which stays on a line."""
    return f"{before} → {after}".replace(" ", "\N{NO-BREAK SPACE}")


def _tried(lane: TriedLane) -> str:
    run = safe(lane.run)
    return (
        f'<li data-tried="{run}"><b>{safe(lane.label)}</b><small>{safe(before_after(lane.effect))}</small>'
        f'<span><a href="?run={run}">As a run of its own</a> <button type="button" class="link-button" '
        f'data-act="undo" data-run="{run}">Undo</button></span></li>'
    )
