"""The lane editor as HTML: method, label, the method's knobs, and where it applies. js/editor.js reports changes."""

from typing import Any

from kvq_core.claims.latency import stored_latency
from kvq_core.errors import KvqError
from kvq_core.methods import Knob, knobs, methods, origin_of
from kvq_core.spec import MAX_LANES, READ_OPTIONS, LaneOptions, Rule, RuleOptions
from ui.form.controls import control, current, places, read
from ui.form.lane_list import mark_of
from ui.form.lanes import LaneForm, add_lane, describe_lane, index, parse_layers, title, update_lane, with_knob
from ui.form.method_picker import first_line, method_picker
from ui.form.rules import as_typed, describe_rule, parse_tokens, rules_of
from ui.form.selecting import SELECT, is_select, select_controls, set_select
from ui.html.escape import safe

KNOB = "knobs."
RULES = "rules."
_OF_LANE = {knob.name: knob for knob in knobs(LaneOptions)}
LABEL = _OF_LANE["label"]
READS = tuple(_OF_LANE[name] for name in READ_OPTIONS if name != SELECT.name)
OPTIONS = tuple(knobs(RuleOptions))
TOKENS = next(knob for knob in knobs(Rule) if knob.name == "tokens")
BUTTONS = ("Duplicate", "Remove", "Close")


def editor(lanes: list[LaneForm], opened: dict[str, Any]) -> str:
    """The editor on the lane that is open; nothing where none is.

    Its tag is new with every revision: Gradio rewrites HTML in place, and an input that a person has changed would keep
    showing that beside another lane's value.
    """
    at = index(lanes, opened["uid"])
    if at is None:
        return ""
    lane, tag = lanes[at], f"lane-editor-{opened['revision']}"
    listed, number = rules_of(lane), min(opened["rule"], len(rules_of(lane)) - 1)
    label = _option(LABEL, lane, "", title({**lane, "label": ""}))
    one = lane["rules"] is None
    own = _stored(listed[number], "" if one else f"{RULES}{number}.", "" if not one else label)
    reads = "".join(_option(knob, lane, "") for knob in READS)
    return (
        f'<{tag} class="editor {mark_of(lanes, at)}" data-uid="{lane["uid"]}" '
        f'data-revision="{opened["revision"]}">'
        f"{'' if one else label + _rules(listed, number)}{own}"
        f'<details class="about"{" open" * _reads_otherwise(lane)}><summary>How it is read</summary>'
        f'<div class="knobs">{reads}{select_controls(lane["select"])}</div></details>'
        f'<div class="editor-buttons">{_buttons(len(lanes))}</div></{tag}>'
    )


def _reads_otherwise(lane: LaneForm) -> bool:
    return lane["select"] is not None or any(lane[knob.name] != knob.default for knob in READS)


def _stored(stored: dict[str, Any], prefix: str, label: str) -> str:
    """Controls of a method and of where it applies; their places begin with ``prefix``."""
    given, known = stored["knobs"], methods()[stored["method"]]
    rows = "".join(
        control(stored["method"], place, f"{prefix}{KNOB}{place}", knob, current(given, place, knob))
        for place, knob in places(known)
        if _open(given, place)
    )
    shown = (TOKENS, *OPTIONS) if prefix else OPTIONS
    options = "".join(_option(knob, stored, prefix) for knob in shown)
    used = any(stored[knob.name] != knob.default for knob in shown)
    return (
        f"{method_picker(stored['method'], f'{prefix}method')}{method_notes(stored['method'])}{label}"
        f'<div class="knobs">{rows}</div>'
        f'<details class="about"{" open" * used}><summary>Where it applies</summary>'
        f'<div class="knobs">{options}</div></details>'
    )


def _rules(rules: list[dict[str, Any]], number: int) -> str:
    """The rules in their order, and what can be done with the one that is open."""
    rows = []
    for at, rule in enumerate(rules):
        words, possible = describe_rule(rule)
        rows.append(
            f'<button type="button" class="plain-button rule{" wrong" * (not possible)}" data-do="rule" '
            f'data-lane="{at + 1}" aria-pressed="{str(at == number).lower()}">{at + 1}. {safe(words)}</button>'
        )
    doing = "".join(
        f'<button type="button" class="plain-button" data-do="{do}" data-lane="{number + 1}"{" disabled" * off}>'
        f"{words}</button>"
        for do, words, off in (("rule-up", "Move rule up", number == 0), ("rule-remove", "Remove rule", False))
    )
    return (
        '<div class="rules" role="group" aria-label="Rules"><small>Of each layer\'s keys and values the first rule '
        f'that fits; what none fits is fp16.</small>{"".join(rows)}<div class="editor-buttons">{doing}</div></div>'
    )


def _option(knob: Knob, stored: dict[str, Any], prefix: str, placeholder: str = "") -> str:
    return control("lane", knob.name, f"{prefix}{knob.name}", knob, as_typed(stored[knob.name]), placeholder)


def _buttons(count: int) -> str:
    rule = '<button type="button" class="plain-button" id="add-rule" data-do="rule-add">Add rule</button>'
    return rule + "".join(
        f'<button type="button" class="plain-button" id="{words.lower()}-lane" data-do="{words.lower()}"'
        f"{' disabled' * (words == BUTTONS[0] and count >= MAX_LANES)}>{words}</button>"
        for words in BUTTONS
    )


def _open(given: dict[str, Any], place: str) -> bool:
    """Whether a control is shown: those inside an object are where it is switched on."""
    outer, _, inner = place.partition(".")
    return not inner or given.get(outer) is not None


def apply_edits(lanes: list[LaneForm], uid: Any, values: dict[str, Any]) -> tuple[list[LaneForm], str | None]:
    """The lanes with what was changed in one lane's editor, by place; and what of it is no value at all.

    What comes from a browser is anybody's data: places and lanes that are not there change nothing.
    """
    said = None
    for place, value in values.items():
        at = index(lanes, uid)
        if at is None:
            return lanes, said
        try:
            lanes = _set(lanes, lanes[at], place, value)
        except KvqError as error:
            said = str(error)
    return lanes, said


def _set(lanes: list[LaneForm], lane: LaneForm, place: str, value: Any) -> list[LaneForm]:
    uid = lane["uid"]
    if place.startswith(RULES):
        return _set_in_rule(lanes, lane, place.removeprefix(RULES), value)
    if is_select(place):
        return update_lane(lanes, uid, select=set_select(lane["select"], place, value))
    if place in _OF_LANE:
        return update_lane(lanes, uid, **{place: _typed(_OF_LANE[place], value)})
    if lane["rules"] is not None:
        return lanes
    if place.startswith(KNOB):
        known = dict(places(methods()[lane["method"]]))
        return with_knob(lanes, uid, place[len(KNOB) :], value) if place[len(KNOB) :] in known else lanes
    if place == "method":
        return update_lane(lanes, uid, method=value) if value in tuple(methods()) else lanes
    asked = next((knob for knob in (TOKENS, *OPTIONS) if knob.name == place and place in lane), None)
    return lanes if asked is None else update_lane(lanes, uid, **{place: _typed(asked, value)})


def _typed(knob: Knob, shown: Any) -> Any:
    """An option's value from its control. Raises SpecError where text is no value."""
    if knob.type != "text":
        return read(knob, shown)
    text = str(shown or "").strip()
    return _PARSED.get(knob.name, str)(text) if text else knob.default


_PARSED = {"layers": parse_layers, TOKENS.name: parse_tokens}  # options that are written in a way of their own


def _set_in_rule(lanes: list[LaneForm], lane: LaneForm, place: str, value: Any) -> list[LaneForm]:
    """One thing set in one of a lane's rules, as in a lane of that rule alone."""
    number, _, inner = place.partition(".")
    rules = lane["rules"] or []
    if not (number.isascii() and number.isdigit()) or int(number[:4]) >= len(rules) or inner == LABEL.name:
        return lanes
    at = int(number)
    (changed,) = _set([alone := {**add_lane([])[0], **rules[at]}], alone, inner, value)
    rule = {name: changed[name] for name in rules[at]}
    return update_lane(lanes, lane["uid"], rules=[*rules[:at], rule, *rules[at + 1 :]])


def complaint(lanes: list[LaneForm], uid: int | None, said: str | None = None) -> str:
    """What is wrong with the lane, in the words of the spec."""
    at = index(lanes, uid)
    error = said or (describe_lane(lanes[at])[1] if at is not None else None)
    return f'<p class="error" role="alert">{safe(error)}</p>' if error else ""


def method_notes(name: str) -> str:
    """The method's docstring, its paper and its deviations, as they are written in its file."""
    cls = methods()[name]
    more = (cls.__doc__ or "").strip().partition("\n\n")[2]
    paper = f'<p><a href="{safe(cls.paper)}" target="_blank" rel="noopener">Paper</a></p>' if cls.paper else ""
    origin = origin_of(cls)
    whence = f'<p class="muted">From {safe(origin.words)}</p>' if origin is not None else ""
    deviations = "".join(f"<li>{safe(text)}</li>" for text in cls.deviations)
    listing = f"<p>Deviations from the paper:</p><ul>{deviations}</ul>" if deviations else ""
    timed = "".join(f"<p>{safe(words)}</p>" for words in stored_latency().said.get(cls.title, ()))
    return (
        f'<details class="about"><summary>{safe(first_line(cls))}</summary>'
        f"<p>{safe(' '.join(more.split()))}</p>{timed}{whence}{paper}{listing}</details>"
    )
