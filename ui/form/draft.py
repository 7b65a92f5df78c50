"""The form as a browser kept it, see js/visit.js. What a browser keeps is anybody's text: bad content is no draft."""

import json
import math
from typing import Any, get_args

from kvq_core.errors import SpecError
from kvq_core.methods import Knob, knobs, methods, selections
from kvq_core.spec import MAX_LANES, Capture, ComparisonSpec, parse_spec
from ui.form.editor import LABEL, OPTIONS, READS, TOKENS
from ui.form.lanes import FIRST, LaneForm
from ui.form.selecting import select_knobs
from ui.form.values import CONVERSATION, FIELDS, from_comparison

VERSION = 1
MOST_CHARS = 3_000_000  # of a draft; a prompt may have two million
MOST_NUMBER = 2.0**63
_REST = set(ComparisonSpec.model_fields) - set(FIELDS) - {"lanes", "stress", *CONVERSATION}
Form = tuple[list[Any], list[LaneForm], dict[str, Any]]  # as ui.form.values.from_comparison gives it


def draft_json(lanes: list[LaneForm], rest: dict[str, Any]) -> str:
    """What of a draft the server holds."""
    return json.dumps({"lanes": lanes, "rest": rest})


def read_draft(raw: Any) -> Form | None:
    """The form of a draft; None where it is none of this version, or anything in it is not what a form can hold."""
    if not isinstance(raw, str) or not 0 < len(raw) <= MOST_CHARS:
        return None
    try:
        data = json.loads(raw)
        if data["version"] != VERSION:
            return None
        told = {**_LATER, **data["values"]}
        values = [_value(name, told[name]) for name in FIELDS]
        lanes = [_lane(uid, lane) for uid, lane in enumerate(data["lanes"], 1)]
        rest = {name: value for name, value in data["rest"].items() if name in _REST}
        parse_spec({"prompt": "-", **rest})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SpecError):
        return None
    return (values, lanes, rest) if len(lanes) <= MAX_LANES else None


def _value(name: str, value: Any) -> Any:
    """A field's value. Raises ValueError for one that its control cannot show."""
    if name == "capture.detail":
        return _one_of(get_args(Capture.model_fields["detail"].annotation), value)
    if name == "floors":
        return _one_of(get_args(ComparisonSpec.model_fields["floors"].annotation), value)
    usual = _USUAL[name]
    if isinstance(usual, bool):
        return _one_of((False, True), value)
    if isinstance(usual, str):
        return _checked(isinstance(value, str), value)
    return _number(value)


def _lane(uid: int, lane: dict[str, Any]) -> LaneForm:
    rules = lane.get("rules")
    stored = _storing(lane) if rules is None else {**_storing({**lane, "method": FIRST}), "method": None}
    ruled = None if rules is None else [{**_storing(rule), TOKENS.name: _option(TOKENS, rule)} for rule in rules]
    of_lane = {knob.name: _option(knob, lane) for knob in (LABEL, *READS)} | {"select": _select(lane.get("select"))}
    return {"uid": uid, **of_lane, **stored, "rules": ruled, "off": _one_of((False, True), lane.get("off", False))}


def _select(given: Any) -> dict[str, Any] | None:
    """What chooses the keys that a lane reads, with its knobs."""
    if given is None:
        return None
    by = _one_of(tuple(selections()), given["by"])
    known = select_knobs(by)
    return {"by": by, **{name: _knob(known[name], value) for name, value in given.items() if name != "by"}}


def _storing(given: dict[str, Any]) -> dict[str, Any]:
    """What a lane, or one of its rules, says of how it stores."""
    method = _one_of(tuple(methods()), given["method"])
    known = {knob.name: knob for knob in knobs(methods()[method])}
    knobs_given = {name: _knob(known[name], value) for name, value in given["knobs"].items()}
    return {"method": method, "knobs": knobs_given, **{knob.name: _option(knob, given) for knob in OPTIONS}}


def _option(knob: Knob, given: dict[str, Any]) -> Any:
    """An option's value, as its control can show it; one from before there was such an option has its default."""
    value = given.get(knob.name, knob.default)
    if value is None and knob.nullable:
        return None
    if knob.type == "choice":
        return _one_of(knob.choices or (), value)
    if knob.type == "boolean":
        return _one_of((False, True), value)
    if knob.type != "text":
        return _knob(knob, value)
    return _checked(isinstance(value, str) or (isinstance(value, list) and all(map(_span, value))), value)


def _span(part: Any) -> bool:
    """Whether it is a number, as layers are listed by, or two that tokens lie between."""
    numbers = part if isinstance(part, list) and len(part) == 2 else [part]
    return all(isinstance(number, int) for number in numbers)


def _knob(knob: Knob, value: Any) -> Any:
    if knob.fields and value is not None:
        inner = {field.name: field for field in knob.fields}
        return {name: _knob(inner[name], given) for name, given in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bool) else _number(value)


def _number(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _checked(value is None or (number and math.isfinite(value) and abs(value) < MOST_NUMBER), value)


def _one_of(allowed: tuple[Any, ...], value: Any) -> Any:
    return _checked(isinstance(value, str | bool) and value in allowed, value)


def _checked(fits: bool, value: Any) -> Any:
    if not fits:
        raise ValueError
    return value


_LATER = {"floors": "storage", "conversation": ""}  # of drafts from before there were such fields
_USUAL = dict(zip(FIELDS, from_comparison(parse_spec({"prompt": "-"}))[0], strict=True))
