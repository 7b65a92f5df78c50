"""In engines: which engines have a lane's cache, and what is not the same there, as a whole, or rule by rule where no
engine has it. What to type is no answer of one prompt: flags come with a check on many."""

from collections.abc import Iterable, Sequence

from kvq_core.analysis.deploy import Refusal, leaves_windows, whole_lane
from kvq_core.engines import engines
from kvq_core.errors import SpecError
from kvq_core.methods import LayerKind, make
from kvq_core.methods.deployments import NO_DEPLOYMENT, Elsewhere, Home, with_center, with_fold, with_rotation
from kvq_core.record.fields import LaneRecord, RuleRecord
from ui.html.escape import safe
from ui.html.numbers import join_words
from ui.html.verdict import check_link


def take_away(lane: LaneRecord, layers: Sequence[LayerKind], run: str) -> str:
    """Of a lane on a model of these layers: the engines, what differs, and which rule one cannot express; ``run``: its
    run, which can be checked on more prompts."""
    if lane.status != "done":
        return _details("In engines", _muted(NO_DEPLOYMENT))
    several = len(lane.every_rule) > 1
    some = lane.tensors != "both" or lane.layers != "all" or any(leaves_windows(r, layers) for r in lane.every_rule)
    ways, refusals = whole_lane(lane, layers) if (several or some) and lane.select is None else ([], [])
    items = "".join(_way(way.tool, way) for way in ways) + "".join(map(_refused, refusals))
    if not ways:
        found = [(rule, way) for rule in lane.every_rule for way in _ways(rule)]
        items += "".join(_way(f"{rule.title}: {way.tool}" if several else way.tool, way) for rule, way in found)
        if found and several:
            items += _muted("This lane stores by several rules; each of these stores everything by one.")
        elif found and some:
            items += _muted("This lane leaves some tensors or layers as they are; these quantize all of them.")
        if found and lane.select is not None:
            items += _muted("This lane reads chosen keys alone; these read all of them.")
        ways = [way for _, way in found]
    # an engine whose own words tell of a prompt's own chunk has exceptions that its home does not know
    items += "".join(map(_muted, _prompts(lane, {way.tool for way in ways if "own chunk" not in (way.differs or "")})))
    if not items:
        return _details("In engines", _muted(NO_DEPLOYMENT))
    if ways:
        items += f"<p class='muted'>One prompt says nothing of what to type. {check_link(run)}</p>"
    return _details(f"In engines: {join_words(list(dict.fromkeys(way.tool for way in ways)))}", items)


def _details(summary: str, inside: str) -> str:
    return f"<details><summary>{safe(summary.removesuffix(': '))}</summary>{inside}</details>"


def _way(title: str, way: Elsewhere) -> str:
    said: Iterable[str] = filter(None, (way.needs, way.differs and f"Not the same: {way.differs}"))
    known = engines().get(way.tool)
    read = f" <small>{safe(way.first)}, as of {safe(known.version)}</small>" if known else ""
    return f"<p><b>{safe(title)}</b>{read}</p>" + "".join(map(_muted, said))


def _prompts(lane: LaneRecord, tools: set[str]) -> list[str]:
    """How the engines that the lane's formats are known from read a prompt, where the lane read it otherwise."""
    if lane.prefill != "full":
        return []
    homes = dict.fromkeys(home for rule in lane.every_rule if (home := _home(rule)) and home.engine in tools)
    own = {"raw": "as it computed them", "stored": "as it stores them"}
    return [
        f"{home.engine} reads a prompt through its cache, {home.chunk:,} tokens at a time, and of those their own keys "
        f"and values {own[home.own_chunk]}; this lane read its prompt in full precision; with prefill = "
        "deployed it reads as that engine does."
        for home in homes
    ]


def _home(rule: RuleRecord) -> Home | None:
    try:
        return make(rule.method, **rule.knobs).own_home
    except SpecError:  # as in ``_ways``
        return None


def _refused(refusal: Refusal) -> str:
    return _muted(f"{refusal.engine} cannot have this lane, by its rule {refusal.rule}: {refusal.reason}.")


def _muted(text: str) -> str:
    return f'<p class="muted">{safe(text)}</p>'


def _ways(rule: RuleRecord) -> tuple[Elsewhere, ...]:
    try:
        ways = with_center(make(rule.method, **rule.knobs).elsewhere(), rule.center)
        return with_rotation(with_fold(ways, rule.fold), rule.rotate)
    except SpecError:  # a run of an earlier version, whose method or knob is gone
        return ()
