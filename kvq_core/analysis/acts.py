"""What may help where one looks: lanes that change one thing of a lane there, to be added to its run.

Whether it does is not known before it is computed; ``effect`` tells what came of it, on the same tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvq_core.analysis.foretells import FIRST, MEASURES, measure_by_layer
from kvq_core.analysis.key_constants import constant_layers
from kvq_core.analysis.plans import lane_of, shape_of
from kvq_core.analysis.scored import has_steps
from kvq_core.errors import KvqError, SpecError
from kvq_core.methods import ModelShape, knobs, methods
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.spec import READ_OPTIONS, Lane, Rule, rules_for

WIDE = 8  # bits
SINKS = 4  # first tokens
LEAST_SPAN = 4  # tokens around the hottest ones
LABEL = 60  # characters of a lane's

Offer = tuple[str, str, str, str, Sequence[Rule]]  # an act's name, what it says and why, what its lane is called, rules


@dataclass(frozen=True)
class LookedPlace:
    """Where one looks: a layer with a query head and its KV head and, where a click said so, key positions
    [start, end) or a channel of the head."""

    layer: int
    head: int
    kv_head: int
    span: tuple[int, int] | None = None
    channel: int | None = None


@dataclass(frozen=True)
class Act:
    """A lane that changes one thing, ``name`` in short; ``says`` what, and ``because`` why it may help."""

    name: str
    says: str
    because: str
    lane: Lane


@dataclass(frozen=True)
class Effect:
    """What an added lane came to beside the one it changes: mean KLD in nats, the mean of the paired differences with
    its standard error, and stored bytes."""

    before: float
    after: float
    gain: float
    se: float
    more_bytes: int
    flips: tuple[float | None, float | None]

    @property
    def sure(self) -> bool:
        """Whether the difference is more than two standard errors."""
        return abs(self.gain) > 2 * self.se


def acts(record: Record, arrays: Arrays, index: int, place: LookedPlace) -> tuple[Act, ...]:
    """What may help lane ``index`` of a run at a place; nothing for a lane that quantizes nothing, or that this version
    cannot build any more, and nothing where no change could be compared."""
    if not has_steps(record):
        return ()
    lane = lane_of(record, index)
    if lane is None or not lane.quantizes or record.lanes[index].status != "done":
        return ()
    tried = (_in_layer(record, arrays, index, lane, place), _of_tokens(record, arrays, index, lane, place))
    offers = (offer for some in (*tried, _of_keys(arrays, lane, place)) for offer in some)
    found = [act for offer in offers if (act := _act(lane, shape_of(record), offer)) is not None]
    known = {_told(own) for own in (lane_of(record, at) for at in range(len(record.lanes))) if own is not None}
    return tuple(act for act in found if _told(act.lane) not in known)


def effect(record: Record, arrays: Arrays, before: int, after: int) -> Effect | None:
    """What lane ``after`` came to beside ``before``; None where one of them was not scored on the same tokens."""
    klds = [array(arrays, f"lane/{at}/kld") for at in (before, after)]
    sizes = [_bytes(record.lanes[at]) for at in (before, after)]
    if any(kld is None or not kld.size for kld in klds) or None in sizes:
        return None
    one, other = (np.asarray(kld, np.float64) for kld in klds)
    if one.shape != other.shape:
        return None
    differs = one - other
    se = float(differs.std(ddof=1) / len(differs) ** 0.5) if len(differs) > 1 else 0.0
    flips = tuple(m.flip_rate if (m := record.lanes[at].metrics) else None for at in (before, after))
    more = (sizes[1] or 0) - (sizes[0] or 0)
    return Effect(float(one.mean()), float(other.mean()), float(differs.mean()), se, more, (flips[0], flips[1]))


def hottest_span(record: Record, arrays: Arrays, index: int, place: LookedPlace) -> tuple[int, int] | None:
    """The prompt's tokens [start, end) whose scores a lane moves most under the place's head, by its map; None where
    that head's was not kept."""
    info = record.capture
    codes = arrays.get(f"lane/{index}/delta_map")
    if codes is None or place.layer not in info.layers or place.head not in info.heads:
        return None
    own = np.asarray(codes[info.layers.index(place.layer), info.heads.index(place.head)], np.float32)
    edges, prompt = np.asarray(info.position_edges), len(record.reference.prompt_token_ids)
    of_prompt = edges[1:] <= prompt
    if not of_prompt.any() or not own.size:
        return None
    at = int(np.where(of_prompt, np.abs(own).sum(0), -1.0).argmax())
    return widened((int(edges[at]), int(edges[at + 1])), prompt)


def widened(span: tuple[int, int], prompt: int) -> tuple[int, int] | None:
    """A span with tokens around it, at least LEAST_SPAN, within the prompt; None where it lies behind it."""
    start, end = max(0, span[0]), min(span[1], prompt)
    if start >= end:
        return None
    more = max(0, LEAST_SPAN - (end - start))
    start = max(0, start - more // 2)
    return start, min(prompt, max(end, start + LEAST_SPAN))


def _in_layer(record: Record, arrays: Arrays, index: int, lane: Lane, place: LookedPlace) -> Iterator[Offer]:
    """The layer in fp16, at eight bits, or as another method has it."""
    layer, there = place.layer, f"layer {place.layer}"
    covering = [rule for rule in lane.every_rule if rule.layers == "all" or layer in rule.layers]
    if layer not in shape_of(record).full or not any(rule.build().quantizes for rule in covering):
        return  # of windows no error was looked at
    why = _loses(arrays, index, layer)
    own = lane.every_rule
    yield "layer-fp16", f"Keep {there} in fp16", why, f"{there} fp16", [Rule(method="fp16", layers=(layer,)), *own]
    wide = [found for rule in covering if (found := _wide(rule, layer)) is not None]
    yield "layer-wide", f"{WIDE} bits in {there}", why, f"{there} {WIDE}-bit", [*wide, *own]
    for other, less in _better_there(record, arrays, index, layer):
        told = record.lanes[other].label
        named = f"{there} as {told}"
        rules = [rule for rule in _rules(record, other) if rule.layers == "all" or layer in rule.layers]
        yield "layer-other", f"{told} in {there}", less, named, [*(_at_layer(rule, layer) for rule in rules), *own]


def _of_tokens(record: Record, arrays: Arrays, index: int, lane: Lane, place: LookedPlace) -> Iterator[Offer]:
    """Tokens that stay in fp16: those that were clicked or are hurt most, and the first."""
    prompt = len(record.reference.prompt_token_ids)
    clicked = None if place.span is None else widened(place.span, prompt)
    if (span := clicked or hottest_span(record, arrays, index, place)) is not None:
        words = f"tokens {span[0]}-{span[1] - 1}"
        why = "you pointed at them" if clicked else f"their scores move most in layer {place.layer}, head {place.head}"
        rules = [Rule(method="fp16", tokens=(span,)), *lane.every_rule]
        yield "span", f"Protect {words} of the prompt", why, f"{words} fp16", rules
    rules = [_with_sinks(rule) for rule in lane.every_rule]
    if rules != list(lane.every_rule):
        moved = array(arrays, f"lane/{index}/sink_mass")
        lost = None if moved is None or not moved.size else float(moved.mean())
        change = "" if lost is None else f"{'−' if lost < 0 else '+'}{abs(100 * lost):.1f}"
        why = f"their share of attention changed by {change} points" if change else "attention rests on them"
        yield "sinks", f"Keep the first {SINKS} tokens in fp16", why, f"{SINKS} sinks", rules


def _of_keys(arrays: Arrays, lane: Lane, place: LookedPlace) -> Iterator[Offer]:
    """Keys without their constant, and with their outlying channels spread."""
    constant = constant_layers(arrays).get(place.layer)
    why = "what its keys have in common takes up their scales"
    if constant is not None:
        why = f"the keys of layer {place.layer} carry a constant {constant:.0f} times as large as what differs in them"
    rules = [_changed(rule, center="mean") for rule in lane.every_rule]
    yield "center", "Centre the keys", why, "centred", rules
    # constants cost nothing where keys have a scale for each channel, along the tokens
    gains = any(rule.quantizes("keys") and methods()[rule.method].scales[0] != "tokens" for rule in lane.every_rule)
    if gains and constant_layers(arrays) and array(arrays, "pairs/key_bias") is not None:
        rules = [_changed(_changed(rule, center="slow"), fold="keys") for rule in lane.every_rule]
        why = "slow biases left out, scales folded; Mend this model, in the look at it, makes it a file"
        yield "mended", "What a mended file would do", why, "mended", rules
    if place.channel is not None:
        why = f"a turn spreads channel {place.channel} over all of its head"
        rules = [_changed(rule, rotate="hadamard") for rule in lane.every_rule]
        yield "rotate", "Rotate keys and values", why, "rotated", rules


def _act(lane: Lane, shape: ModelShape, offer: Offer) -> Act | None:
    """The lane with an offer's rules in place of its own, those of them that are for anything; None where that is no
    lane, or is the lane itself."""
    name, says, because, label, rules = offer
    changed = rules_for(rules, shape)
    if changed == lane.every_rule:
        return None
    short = lane.label[: max(8, LABEL - 3 - len(label))].rstrip()
    kept = lane.model_dump(mode="json", include={*READ_OPTIONS})
    with suppress(KvqError, ValueError):  # what the spec refuses, of these rules together too
        return Act(name, says, because, Lane(label=f"{short} + {label}"[:LABEL], rules=changed, **kept))
    return None


def _wide(rule: Rule, layer: int) -> Rule | None:
    """A rule for one layer at WIDE bits, by its own method where that can, else by a scale per token; None for one that
    keeps fp16."""
    if not rule.build().quantizes:
        return None
    own = {knob.name: knob for knob in knobs(methods()[rule.method])}
    widths = (own["bits"].choices if "bits" in own else None) or ()
    if WIDE in widths:
        kept = {name: value for name, value in rule.knobs.items() if name not in ("bits", "key_bits", "value_bits")}
        with suppress(KvqError, ValueError):
            return _at_layer(rule, layer).model_copy(update={"knobs": {**kept, "bits": WIDE}})
    return Rule(method="per_token", knobs={"bits": WIDE}, layers=(layer,), tensors=rule.tensors)


def _at_layer(rule: Rule, layer: int) -> Rule:
    given = {name: getattr(rule, name) for name in Rule.model_fields}
    return Rule(**{**given, "layers": (layer,)})


def _changed(rule: Rule, **options: Any) -> Rule:
    """The rule with these options where it quantizes, its keys for ``center``, and has none yet; else itself."""
    quantizes = rule.quantizes("keys") or ("rotate" in options and rule.quantizes("values"))
    if not quantizes or any(getattr(rule, name) != "none" for name in options):
        return rule
    given = {name: getattr(rule, name) for name in Rule.model_fields}
    with suppress(KvqError, ValueError):
        return Rule(**{**given, **options})
    return rule


def _with_sinks(rule: Rule) -> Rule:
    if not rule.build().quantizes or rule.tokens != "all" or min(w.sink for w in rule.windows()) >= SINKS:
        return rule
    with suppress(SpecError):
        return rule.with_options(sink_tokens=SINKS)
    return rule


def _better_there(record: Record, arrays: Arrays, index: int, layer: int) -> Iterator[tuple[int, str]]:
    """The lane of the run that is hurt least in the layer, by the measure that foretells best what it costs, where that
    is less than this one, and how much less."""
    own, found = _hurt(arrays, index, layer), []
    for at, lane in enumerate(record.lanes):
        theirs = _hurt(arrays, at, layer)
        if at != index and lane.quantized and own is not None and theirs is not None and theirs < own:
            found.append((theirs, at))
    if own is not None and found:
        theirs, at = min(found)
        yield at, f"its {MEASURES[FIRST][0]} there is {theirs:.2g}, this lane's {own:.2g}"


def _hurt(arrays: Arrays, index: int, layer: int) -> float | None:
    found = measure_by_layer(arrays, index)
    return None if found is None or layer >= len(found) else float(found[layer])


def _loses(arrays: Arrays, index: int, layer: int) -> str:
    own = _errors(arrays, index, layer)
    return "it is the selected layer" if own is None else f"it loses {_shares(own)} there"


def _shares(errors: tuple[float, float]) -> str:
    return f"{100 * errors[0]:.0f} % of its keys and {100 * errors[1]:.0f} % of its values"


def _errors(arrays: Arrays, index: int, layer: int) -> tuple[float, float] | None:
    """Relative errors of a layer's keys and values, mean over its heads."""
    found = [array(arrays, f"lane/{index}/{kind}_error") for kind in ("key", "value")]
    if any(error is None or layer >= len(error) for error in found):
        return None
    key, value = (float(error[layer].mean()) for error in found if error is not None)
    return key, value


def _rules(record: Record, index: int) -> tuple[Rule, ...]:
    lane = lane_of(record, index)
    return () if lane is None else lane.every_rule


def _told(lane: Lane) -> str:
    """All that decides a lane, not what it is called."""
    return lane.model_copy(update={"label": ""}).model_dump_json()


def _bytes(lane: LaneRecord) -> int | None:
    return None if lane.memory is None else sum(lane.memory.bytes_by_part.values())
