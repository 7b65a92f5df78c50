"""What a decision rests on, below it: the map of layers, policies beside simpler lanes, and what fits."""

from kvq_core.recommend.constraints import Advice
from kvq_core.recommend.decision import Decision
from kvq_core.recommend.held_out import WIN
from kvq_core.recommend.policies import Compared, Grounds, PolicyGrounds
from kvq_core.sizing.fit import MEMORIES
from kvq_core.sizing.reserve import allowance
from ui.decide.layer_map import map_html
from ui.html.copying import copy_box
from ui.html.escape import prose, safe
from ui.html.numbers import ABSENT, plural, significant, size
from ui.html.study_tables import table

NAMES = {"policy": "Policy", "one format": "Best uniform lane", "ends": "First and last two layers fp16"}


def layers_html(found: Grounds) -> str:
    """The map, and what inspection says."""
    over = f"Mean KLD of one layer alone, over {plural(found.scored, 'prompt')}, all else fp16." if found.scores else ""
    named = f" Scores {found.scores_id}." if found.scores_id else ""
    looked = f'<p class="inspected">{prose(found.inspected)}</p>' if found.inspected else ""
    return (
        f'<h3 class="figure-title">What each layer costs</h3><p class="muted">{safe(over + named)}</p>'
        f"{looked}{map_html(found)}"
    )


def policy_html(found: Grounds) -> str:
    """The policy beside what is simpler, predicted and measured; nothing where none was tried."""
    held = found.policy
    if held is None:
        return ""
    rows = "".join(_compared(each) for each in held.lanes)
    head = ("Lane", "Cache", "Predicted", "Measured")
    return (
        f'<h3 class="figure-title">The policy, verified</h3><p>{prose(_verdict(held))}</p>'
        f"{table([safe(title) for title in head], [rows])}"
        + (copy_box("Flags of the policy", held.flags) if held.flags else "")
    )


def _verdict(held: PolicyGrounds) -> str:
    run = (
        f"Scored on {plural(held.scored, 'prompt')}, run on {plural(held.unseen, 'prompt')} that were not scored. "
        "Bytes are those of the cache that was asked for."
    )
    if held.beats:
        return f"The policy loses at most 1/{WIN} of what the best uniform lane of no more bytes does. {run}"
    return f"The best uniform lane is not {WIN} times as far off, so the policy is no gain. {run}"


def _compared(each: Compared) -> str:
    rules = each.lane.get("rules")
    what = f"{len(rules)} rules" if isinstance(rules, list) else safe(each.label)
    what = "" if what.lower() == NAMES[each.what].lower() else f"<small>{what}</small>"
    predicted = ABSENT if each.predicted is None else significant(each.predicted)
    return (
        f'<tr><th scope="row">{NAMES[each.what]} {what}</th><td>{size(each.bytes)}</td><td>{predicted}</td>'
        f"<td><b>{significant(each.measured)}</b></td></tr>"
    )


def fits_html(decision: Decision) -> str:
    """The longest context of every lane in GPUs of common sizes, beside the weights."""
    found, own = decision.advice, decision.grounds.own_context
    if not decision.grounds.fits:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{safe(each.label)}</th>'
        + "".join(_context(each.contexts.get(memory), found, own) for memory in MEMORIES)
        + "</tr>"
        for each in decision.grounds.fits
    )
    head = [f"{plural(found.batch, 'sequence')}", *(f"{memory} GB" for memory in MEMORIES)]
    weights = f"{size(found.weights.bytes)}, {found.weights.how}"
    green = f"Green: the {found.context:,} that were asked for fit"
    if own and own < found.context:
        green = f"Green: as many as the model has fit, of the {found.context:,} that were asked for"
    said = (
        f"The longest context, in tokens, beside the weights ({weights}), with {allowance().share:.0%} and "
        f"{size(allowance().bytes)} left for what is neither; "
        f"at most the model's own{f', {own:,}' if own else ''}. {green}."
    )
    return (
        f'<h3 class="figure-title">What fits</h3>{table([safe(title) for title in head], [rows])}'
        f'<p class="muted">{prose(said)}</p>'
    )


def _context(tokens: int | None, found: Advice, own: int | None) -> str:
    if tokens is None:
        return f'<td class="fit">{ABSENT}</td>'
    enough = tokens >= min(found.context, own or found.context)
    return f'<td class="fit {"enough" if enough else "short"}">{f"{tokens:,}" if tokens else "nothing"}</td>'
