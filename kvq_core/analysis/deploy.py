"""A lane as a whole in the words of an engine that has its formats, or what of it that engine cannot express."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvq_core.engines import Engine, engines, first_release, latest
from kvq_core.errors import SpecError
from kvq_core.methods import LayerKind, make
from kvq_core.methods.deployments import Elsewhere
from kvq_core.record.fields import LaneRecord, RuleRecord
from kvq_core.spec import TENSORS, RuleOptions, Tensor

_PLACES = ("tensors", "layers", "sliding")  # options that are looked at one by one
_WINDOWS = "sliding_window"  # among the layers that vLLM leaves out: those that attend to a window


@dataclass(frozen=True)
class Refusal:
    """Why an engine with some of a lane's formats cannot have the lane: the rule's number from 1, and the reason."""

    engine: str
    rule: int
    reason: str


def whole_lane(lane: LaneRecord, layers: Sequence[LayerKind]) -> tuple[list[Elsewhere], list[Refusal]]:
    """The engines that can store as the lane does on a model of these ``layers``, and why others cannot that know one
    of its formats at least."""
    return of_rules(lane.every_rule, layers)


def of_rules(rules: Sequence[RuleRecord], layers: Sequence[LayerKind]) -> tuple[list[Elsewhere], list[Refusal]]:
    """``whole_lane`` of a lane's rules."""
    words = [{tensor: _words(rule, tensor) for tensor in _tensors(rule)} for rule in rules]
    ways, refusals = [], []
    for name, engine in engines().items():
        own = [{tensor: known.get(name) for tensor, known in each.items()} for each in words]
        if not any(word for each in own for word in each.values()):
            continue
        found = _told(engine, name, rules, own, layers)
        if isinstance(found, Refusal):
            refusals.append(found)
        else:
            ways.append(Elsewhere(name, found, *_notes(rules, name), _since(rules, name, found)))
    return ways, refusals


def _notes(rules: Sequence[RuleRecord], engine: str) -> tuple[str | None, str | None]:
    """What the formats of a lane's rules do otherwise in an engine, and the hardware they take there."""
    own = [way for rule in rules for way in _elsewhere(rule) if way.tool == engine]
    differs = dict.fromkeys(way.differs for way in own if way.differs)
    needs = dict.fromkeys(way.needs for way in own if way.needs)
    return " ".join(differs) or None, "; ".join(needs) or None


def _since(rules: Sequence[RuleRecord], engine: str, command: str) -> str | None:
    """The first release with all that a command of an engine asks for."""
    asked = [way.since for rule in rules for way in _elsewhere(rule) if way.tool == engine]
    if asked and (skip := engines()[engine].skip) and skip in command:
        asked.append(first_release(engine, skip))
    return latest(asked)


def _elsewhere(rule: RuleRecord) -> tuple[Elsewhere, ...]:
    try:
        return make(rule.method, **rule.knobs).elsewhere()
    except SpecError:  # as in ``_words``
        return ()


def _quantizes(rule: RuleRecord) -> bool:
    try:
        return make(rule.method, **rule.knobs).quantizes
    except SpecError:  # as in ``_words``
        return True


def _words(rule: RuleRecord, tensor: Tensor) -> dict[str, str]:
    try:
        return make(rule.method, **rule.knobs).for_tensor(tensor).cache_types
    except SpecError:  # a run of an earlier version, whose method or knob is gone
        return {}


def _told(
    engine: Engine,
    name: str,
    rules: Sequence[RuleRecord],
    words: Sequence[dict[Tensor, str | None]],
    layers: Sequence[LayerKind],
) -> str | Refusal:
    """The command, or the first rule that it cannot have."""
    found: dict[Tensor, str] = {}
    for number, (rule, own) in enumerate(zip(rules, words, strict=True), 1):
        if reason := _reason(engine, rule, layers, several=len(rules) > 1):
            return Refusal(name, number, reason)
        for tensor, word in own.items():
            if word is None:
                return Refusal(name, number, "it has no such format")
            if tensor in found:
                return Refusal(name, number, f"{tensor} have one format there, that of an earlier rule")
            found[tensor] = word
    key, value = (found.get(tensor, engine.plain) for tensor in TENSORS)
    if key is None or value is None:
        return Refusal(name, 1, f"{'keys' if key is None else 'values'} cannot stay unquantized there")
    if not engine.apart and key != value:
        return Refusal(name, len(rules), "keys and values have one format there")
    return engine.command.format(keys=key, values=value, both=key) + _skipped(engine, rules[0], layers)


def _tensors(rule: RuleRecord) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in TENSORS if rule.tensors in ("both", tensor))


def leaves_windows(rule: RuleRecord, layers: Sequence[LayerKind]) -> bool:
    """Whether a rule that quantizes leaves layers as they are because they attend to a window."""
    windowed = any(layer.kind in ("sliding", "chunked") for layer in layers)
    return windowed and not rule.sliding and rule.layers == "all" and _quantizes(rule)


def _reason(engine: Engine, rule: RuleRecord, layers: Sequence[LayerKind], several: bool) -> str | None:
    """Why it cannot have a rule, whatever its format; None where it can."""
    if not engine.mixed and _quantizes(rule) and any(layer.kind != "full" or layer.recurrent for layer in layers):
        return "it takes models alone all of whose layers keep all tokens"
    if engine.skip is None and leaves_windows(rule, layers):
        return "layers that attend to a window are stored so there, too, which sliding = true does"
    if rule.tokens != "all":
        return "all tokens have one format there"
    if rule.sink_tokens or rule.recent_tokens:
        return "no tokens stay unquantized there"
    if rule.center != "none":
        mend = "; python -m kvq_core mend leaves slow biases out of a file" if rule.center == "slow" else ""
        return f"keys are not centred there{mend}"
    if rule.fold != "none":
        return "scales of keys cannot be asked for there; python -m kvq_core mend folds them into a file"
    if rule.rotate != "none":
        return "a rotation cannot be asked for there"
    for name, field in RuleOptions.model_fields.items():
        if name not in _PLACES and (value := getattr(rule, name)) not in (field.default, 0):
            return f"{name} = {value} cannot be asked for there"
    if rule.layers != "all" and (several or engine.skip is None):
        return "all layers have one format there"
    return None


def _skipped(engine: Engine, rule: RuleRecord, layers: Sequence[LayerKind]) -> str:
    """The layers that its one rule leaves out, where it quantizes any."""
    if engine.skip is None or not _quantizes(rule):
        return ""
    left = [] if rule.layers == "all" else [str(layer) for layer in range(len(layers)) if layer not in rule.layers]
    if leaves_windows(rule, layers):  # vllm/model_executor/layers/attention/attention.py:300-312; chunks are none there
        left += [str(at) for at, layer in enumerate(layers) if layer.kind == "chunked"]
        left += [_WINDOWS] * any(layer.kind == "sliding" for layer in layers)
    return f" {engine.skip} {' '.join(left)}" if left else ""
