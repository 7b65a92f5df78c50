"""The lanes of the form as plain dicts with a uid and whether they are off, and what can be done to them. No Gradio
here."""

from typing import Any

from kvq_core.errors import KvqError
from kvq_core.methods import methods
from kvq_core.spec import LANE_OPTIONS, MAX_LANES, READ_OPTIONS, Lane, in_words, parse_lane, subtitle
from ui.form.controls import set_knob
from ui.form.rules import describe_rule

LaneForm = dict[str, Any]
FIRST = "kivi"


def from_spec(lanes: tuple[Lane, ...]) -> list[LaneForm]:
    """The form of a spec's lanes."""
    return [{"uid": uid, **_dumped(lane)} for uid, lane in enumerate(lanes, 1)]


def _dumped(lane: Lane) -> dict[str, Any]:
    """A lane's fields as the form has them: how it reads the prompt as one types it."""
    return {**lane.model_dump(mode="json"), "prefill": in_words(lane.prefill), "off": False}


def to_spec(lanes: list[LaneForm]) -> list[dict[str, Any]]:
    """Plain data for parse_spec, of the lanes that are not off; options at their defaults are left out."""
    return [_plain(lane) for lane in lanes if not lane.get("off")]


def _plain(lane: LaneForm) -> dict[str, Any]:
    said = _given({k: v for k, v in lane.items() if k not in ("uid", "off")})
    if isinstance(said.get("rules"), list):
        said["rules"] = [_given(rule) for rule in said["rules"]]
    return said


def _given(data: Any) -> Any:
    """Without what is left to a default."""
    return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def add_lane(lanes: list[LaneForm], method: str | None = None) -> list[LaneForm]:
    """One lane more, at most MAX_LANES."""
    if len(lanes) >= MAX_LANES:
        return lanes
    method = method or (lanes and lanes[-1]["method"]) or FIRST
    blank = {name: field.get_default(call_default_factory=True) for name, field in Lane.model_fields.items()}
    return [*lanes, {**blank, "uid": _next(lanes), "method": method, "off": False}]


def append_lane(lanes: list[LaneForm], lane: Lane) -> list[LaneForm]:
    """A finished lane at the end, at most MAX_LANES; labels must differ."""
    if len(lanes) >= MAX_LANES:
        return lanes
    given = _dumped(lane)
    taken = any(other["label"] == given["label"] for other in lanes)
    return [*lanes, {**given, "uid": _next(lanes), "label": _free(lanes, given["label"]) if taken else given["label"]}]


def duplicate_lane(lanes: list[LaneForm], uid: int | None) -> list[LaneForm]:
    """A copy right after the lane; a label it had is numbered on, since labels must differ."""
    if len(lanes) >= MAX_LANES:
        return lanes
    at = index(lanes, uid)
    if at is None:
        return lanes
    copy = {
        **lanes[at],
        "knobs": dict(lanes[at]["knobs"]),
        "uid": _next(lanes),
        "label": _free(lanes, lanes[at]["label"]),
    }
    return [*lanes[: at + 1], copy, *lanes[at + 1 :]]


def remove_lane(lanes: list[LaneForm], uid: int | None) -> list[LaneForm]:
    return [lane for lane in lanes if lane["uid"] != uid]


def switch_lane(lanes: list[LaneForm], uid: int | None) -> list[LaneForm]:
    """A lane off, so that it is kept and not run, or on again."""
    return [{**lane, "off": not lane["off"]} if lane["uid"] == uid else lane for lane in lanes]


def move_lane(lanes: list[LaneForm], uid: int | None, to: Any) -> list[LaneForm]:
    """A lane at another place of the list, counted from 0 among the others; beyond an end it stays at that end."""
    at = index(lanes, uid)
    if at is None or type(to) is not int:
        return lanes
    others, place = [*lanes[:at], *lanes[at + 1 :]], min(max(0, to), len(lanes) - 1)
    return [*others[:place], lanes[at], *others[place:]]


def update_lane(lanes: list[LaneForm], uid: int, **changes: Any) -> list[LaneForm]:
    """One lane changed; another method starts from its own defaults, and the label told of the old one."""
    out = []
    for lane in lanes:
        if lane["uid"] == uid:
            if changes.get("method", lane["method"]) != lane["method"]:
                lane = {**lane, "knobs": {}, "label": ""}
            lane = {**lane, **changes}
        out.append(lane)
    return out


def with_knob(lanes: list[LaneForm], uid: int, place: str, shown: Any) -> list[LaneForm]:
    """One knob set from its control. Raises SpecError where the text is no value."""
    at = index(lanes, uid)
    if at is None:
        return lanes
    return update_lane(lanes, uid, knobs=set_knob(lanes[at]["method"], lanes[at]["knobs"], place, shown))


def index(lanes: list[LaneForm], uid: int | None) -> int | None:
    return next((i for i, lane in enumerate(lanes) if lane["uid"] == uid), None)


def title(lane: LaneForm) -> str:
    """The label, or the method's title where none was typed."""
    if lane["label"]:
        return str(lane["label"])
    known = methods().get(lane["method"])
    stored = known.title if known else str(lane["method"])
    if lane["rules"] is not None:
        stored = "; ".join(describe_rule(rule)[0] for rule in lane["rules"])
    return stored if lane["select"] is None else f"{stored} + {lane['select']['by']}"


def describe_lane(lane: LaneForm) -> tuple[str, str | None]:
    """The lane's settings in words, and its error if it is not possible."""
    try:
        built = parse_lane(_plain(lane))
        words = [built.title if built.rules else built.summary]
    except KvqError as error:
        return "", str(error)
    said = subtitle(built)
    if built.layers != "all":
        said = {"layers": f"{len(built.layers)} layers", **said}
    if built.sliding:
        said["sliding"] = "windows, too"
    words += [said[name] for name in (*LANE_OPTIONS, *READ_OPTIONS) if name in said]
    return " · ".join(words), None


def parse_layers(text: str) -> Any:
    """``all``, ``0, 1, 5-8`` -> "all" or a list; what is neither is handed on for the spec to refuse."""
    cleaned = text.strip().lower()
    if cleaned in ("", "all"):
        return "all"
    numbers: list[int] = []
    for part in cleaned.replace(";", ",").split(","):
        low, _, high = part.strip().partition("-")
        if not low.isascii() or not low.isdigit() or (high and not (high.isascii() and high.isdigit())):
            return text
        first, last = int(low), int(high or low)
        if last - first > 1000:
            return text
        numbers += range(first, last + 1)
    return numbers


def _next(lanes: list[LaneForm]) -> int:
    return max((lane["uid"] for lane in lanes), default=0) + 1


def _free(lanes: list[LaneForm], label: str) -> str:
    taken = {lane["label"] for lane in lanes}
    if not label:
        return ""
    stem = label[:56]
    return next(name for n in range(2, 100) if (name := f"{stem} {n}") not in taken)
