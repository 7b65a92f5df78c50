"""The answer of a decision as markup: what to deploy, how sure that is, why, and what nothing of it says."""

from collections.abc import Sequence

from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.models import available_models
from kvq_core.recommend.constraints import Advice, LaneCandidate
from kvq_core.recommend.decision import Decision
from kvq_core.recommend.evidence import RESAMPLES
from kvq_core.recommend.sentences import whole_percent
from ui.html.copying import copy_box
from ui.html.escape import prose, safe
from ui.html.numbers import ABSENT, percent, plural, significant, size

TONES = {"one": "good", "unsure": "warn", "none": "bad", "few": "warn"}
WORDS = {"one": "the answer", "unsure": "not sure", "none": "no lane will do", "few": "too few prompts"}
NONE, PLOT = "None of these", "Mean over prompts with its 95 % interval; dotted: the front. Hover tells why not."


def answer_html(decision: Decision, unkept: str = "", beside: str = "") -> str:
    """The card that is read first; ``beside``: markup that opens its lanes in Compare."""
    found = decision.advice
    head, rest = _split(found)
    parts = [
        f'<p class="muted">{safe(" · ".join(_facts(decision)))}</p>',
        f'<p class="kind"><span class="chip {TONES[found.kind]}">{WORDS[found.kind]}</span></p>',
        f"<h1>{prose(head)}</h1>",
        f'<p class="lead">{prose(rest)}</p>' if rest else "",
        _sure(found),
        copy_box(_where(found), found.flags) if found.flags else "",
        _no_flags(found),
        _list("Why", found.reasons, numbered=True),
        f"<h2>Runner-up</h2><p>{prose(found.separates)}</p>" if found.separates else "",
        beside,
        _list("What would help", found.helps),
        "".join(f'<p class="warning">{prose(each)}</p>' for each in [*found.warnings, *filter(None, [unkept])]),
    ]
    return f'<section class="decision card {TONES[found.kind]}">{"".join(parts)}</section>'


def _split(found: Advice) -> tuple[str, str]:
    """What stands large, and the rest of the answer's line."""
    said = found.answer
    if found.kind == "one" and found.label and said.startswith(f"{found.label}: "):
        rest = said.removeprefix(f"{found.label}: ").rpartition("; ")[0]
        return found.label, _sentence(rest)
    if found.kind == "none":
        return f"{NONE}.", _sentence(said.removeprefix(f"{NONE}: "))
    if found.kind == "few":
        head, _, rest = said.partition(": ")
        return f"{head}.", _sentence(rest)
    return f"{said.rpartition('; ')[0]}.", ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _facts(decision: Decision) -> list[str]:
    found, asked = decision.advice, decision.asked
    engine = f"{found.engine} {found.version or ''}".strip() if found.engine else "any engine"
    given = asked.memory and f"{asked.memory} for weights and cache" or asked.cache and f"{asked.cache} for the cache"
    room = given or found.room or "the smallest cache"
    shape = f"{found.batch} × {found.context:,} tokens"
    of, tolerated = plural(found.prompts, "prompt"), f"tolerated: {found.tolerance}"
    return [_named(found.model), of, shape, room, tolerated, engine, f"study {found.study}"]


def _named(model: str) -> str:
    """As the form calls it; a folder or a model of elsewhere by its id."""
    return next((choice.title for choice in available_models() if choice.id == model), model)


def _sure(found: Advice) -> str:
    """A bar with the line from which on an answer is sure; what the share is of in words."""
    if found.agreement is None:
        return ""
    share = 100 * found.agreement
    said = f"{whole_percent(found.agreement)} of {RESAMPLES:,} resamples of the prompts say the same"
    need = f"sure from {percent(CONFIDENCE)} on"
    return (
        f'<div class="sure" role="img" aria-label="{safe(said)}; {need}"><div><b>{prose(said)}</b>'
        f'<small>{prose(need)}</small></div><div class="gauge"><span style="width:{share:.1f}%"></span>'
        f'<i style="left:{100 * CONFIDENCE:.0f}%"></i></div></div>'
    )


def _where(found: Advice) -> str:
    return f"Flags for {found.engine}" if found.engine else "Flags of the first engine that has it"


def _no_flags(found: Advice) -> str:
    return f'<p class="muted">{prose(found.unflagged)}</p>' if found.unflagged else ""


def _list(title: str, lines: Sequence[str], numbered: bool = False) -> str:
    kind = "ol" if numbered else "ul"
    told = "".join(f"<li>{prose(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><{kind}>{told}</{kind}>" if told else ""


def lanes_html(found: Advice) -> str:
    """Every lane with what it takes, what it loses, and why it is not the answer."""
    head = ("Lane", "Cache", "Mean KLD", "Fits", "Front", "Why not")
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    rows = "".join(_row(each, found) for each in found.front)
    return (
        '<details class="about"><summary>'
        f"{safe(plural(len(found.front), 'lane'))} in a table</summary>"
        f'<div class="scroll" tabindex="0"><table class="plain study-table lanes-asked"><thead><tr>{titles}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div></details>"
    )


def _row(each: LaneCandidate, found: Advice) -> str:
    kind = "best" if each.label == found.label else "second" if each.label == found.runner_up else ""
    ends = "" if each.kld_low is None else f"<small>{significant(each.kld_low)} to {significant(each.kld_high)}</small>"
    mean = ABSENT if each.kld_mean is None else f"<b>{significant(each.kld_mean)}</b>{ends}"
    fits = {True: "yes", False: "no", None: ABSENT}[each.fits]
    taken = ABSENT if each.bytes is None else f"<b>{size(each.bytes)}</b>"
    beside = "".join(f", {size(nbytes)} {what}" for nbytes, what in each.beside)
    held = ("reserved" if each.reserved else "tensors") + beside
    mark = f"<small>{'policy of layers' if each.policy else ''}</small>"
    return (
        f'<tr class="{kind}"><th scope="row" title="{safe(each.flags or "")}">{safe(each.label)}{mark}</th>'
        f'<td title="{safe("; ".join(each.counted))}">{taken}<small>{held}</small></td><td>{mean}</td><td>{fits}</td>'
        f'<td>{"●" if each.front else ""}</td><td class="why">{prose(each.why_not or "")}</td></tr>'
    )


def with_links(found: Advice, public: bool) -> Advice:
    """With links that whoever has the decision can follow: on a public instance, where runs are their maker's, from the
    prompts to the study."""
    if not public:
        return found
    worst = tuple(each.model_copy(update={"link": f"?study={found.study}"}) for each in found.worst)
    return found.model_copy(update={"worst": worst})


def worst_html(found: Advice, public: bool = False) -> str:
    """The prompts on which the answer loses most, each a link to its run, or to the study."""
    if not found.worst:
        return ""
    items = "".join(
        f'<li><a href="{safe(each.link)}">{safe(each.prompt)}</a><b>{significant(each.kld)} nats</b></li>'
        for each in with_links(found, public).worst
    )
    return f'<h3 class="figure-title">Where it loses most</h3><ul class="worst">{items}</ul>'


def untested_html(found: Advice) -> str:
    items = "".join(f"<li>{prose(each)}</li>" for each in found.untested)
    return f'<h3 class="figure-title">Not tested</h3><ul class="untested">{items}</ul>'
