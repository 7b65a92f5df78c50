"""The rules of one lane of the form: one more, one less, another order. No Gradio here."""

from typing import Any

from kvq_core.errors import KvqError
from kvq_core.methods import methods
from kvq_core.spec import LANE_OPTIONS, Rule, parse_rule

LaneForm = dict[str, Any]
RuleForm = dict[str, Any]

BLANK: RuleForm = {name: field.get_default(call_default_factory=True) for name, field in Rule.model_fields.items()}
EXCEPTION: RuleForm = {**BLANK, "method": "fp16", "layers": [0]}  # what a rule more is until it is changed
_STORING = ("method", "knobs", *LANE_OPTIONS)


def rules_of(lane: LaneForm) -> list[RuleForm]:
    """The rules of a lane; of one without a list the one it is."""
    return lane["rules"] or [{**BLANK, **{name: lane[name] for name in _STORING}}]


def with_rules(lane: LaneForm, rules: list[RuleForm]) -> LaneForm:
    """The lane with these rules; one alone for all tokens is the lane's own fields again."""
    if len(rules) == 1 and rules[0]["tokens"] == BLANK["tokens"]:
        return {**lane, "rules": None, **{name: rules[0][name] for name in _STORING}}
    blank = {name: None if name == "method" else BLANK[name] for name in _STORING}
    return {**lane, **blank, "rules": rules}


def add_rule(lane: LaneForm) -> LaneForm:
    """The lane with an exception before its rules: the first that fits is used. A label that told of the one method
    goes."""
    known = methods().get(lane["method"])
    label = "" if known is not None and lane["label"] == known.title else lane["label"]
    return with_rules({**lane, "label": label}, [dict(EXCEPTION), *rules_of(lane)])


def remove_rule(lane: LaneForm, at: int) -> LaneForm:
    """The lane without one rule; the last one stays."""
    rules = rules_of(lane)
    left = [rule for number, rule in enumerate(rules) if number != at]
    return with_rules(lane, left) if left else lane


def move_rule_up(lane: LaneForm, at: int) -> LaneForm:
    """The lane with one rule a place earlier."""
    rules = list(rules_of(lane))
    if 0 < at < len(rules):
        rules[at - 1 : at + 1] = rules[at], rules[at - 1]
    return with_rules(lane, rules)


def describe_rule(rule: RuleForm) -> tuple[str, bool]:
    """A rule in a few words, and whether it is possible."""
    try:
        return parse_rule({name: value for name, value in rule.items() if value is not None}).named(), True
    except KvqError:
        return str(rule["method"]), False


def parse_tokens(text: str) -> Any:
    """``all``, ``first:4`` as they are, ``40-60, 80-90`` -> [[40, 60], [80, 90]]; the spec refuses the rest."""
    cleaned = "".join(text.split()).lower() or BLANK["tokens"]
    ends = [part.split("-") for part in cleaned.split(",")]
    if all(len(pair) == 2 and all(end.isascii() and end.isdigit() and len(end) < 8 for end in pair) for pair in ends):
        return [[int(end) for end in pair] for pair in ends]
    return cleaned


def as_typed(value: Any) -> Any:
    """What the editor shows of an option's value: the inverse of ``parse_tokens``, and of ``lanes.parse_layers``."""
    if not isinstance(value, list | tuple):
        return value
    return ", ".join("-".join(map(str, part)) if isinstance(part, list | tuple) else str(part) for part in value)
