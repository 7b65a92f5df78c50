"""The left column's values as a spec, and a spec as values for it."""

import json
from typing import Any

from kvq_core.errors import SpecError, abbreviate
from kvq_core.spec import ComparisonSpec, parse_spec
from kvq_core.spec.chats import Passed, read_row
from ui.form.lanes import LaneForm, from_spec, to_spec
from ui.form.stress import dial_text, dials, read_dial

STRESS = {f"stress.{dial.name}": dial for dial in dials()}
# Order of the values in every handler that reads or fills the form; ``lanes`` and ``rest`` follow them.
FIELDS = (
    "model",
    "prompt",
    "system",
    "no_system",
    "chat",
    "continuation",
    "max_new_tokens",
    "temperature",
    "seed",
    "ignore_eos",
    "expect",
    "capture.detail",
    "floors",
    "conversation",
    *STRESS,
)
CONVERSATION = ("messages", "tools", "last", "score_turns")  # what the box of that name holds
_PLAIN = tuple(name for name in FIELDS if name not in ("no_system", "conversation") and "." not in name)
_SHOWN = {*_PLAIN, *CONVERSATION, "lanes", "stress"}


def to_comparison(values: dict[str, Any], lanes: list[LaneForm], rest: dict[str, Any]) -> ComparisonSpec:
    """The spec the form describes. ``rest`` carries the fields that a preset or link set and the form does not show.

    Raises SpecError with one line.
    """
    data = {**rest, **{name: values[name] for name in _PLAIN}}
    data["capture"] = {**rest.get("capture", {}), "detail": values["capture.detail"]}
    data["stress"] = stress_of(values)
    data["model"] = str(values["model"] or "").strip()
    data["system"] = "" if values["no_system"] else values["system"] or None
    data["continuation"] = values["continuation"] or None
    data["lanes"] = to_spec(lanes)
    passed = Passed()
    spec = parse_spec({**data, **read_conversation(values["conversation"], passed)})
    spec.passed.update(passed)
    return spec


def read_conversation(text: Any, passed: Passed) -> dict[str, Any]:
    """Messages, and the tools with them, from the box's JSON, which may be a whole logged call; nothing where it is
    empty. Raises SpecError."""
    if not str(text or "").strip():
        return {}
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"The conversation is not valid JSON: {abbreviate(str(error))}.") from None
    told = {"messages": found} if isinstance(found, list) else found
    told = read_row(told, passed) if isinstance(told, dict) else told
    if not isinstance(told, dict) or not set(told) <= set(CONVERSATION) or "messages" not in told:
        raise SpecError(
            'The conversation is no list of messages, such as [{"role": "user", "content": "..."}], and no object of '
            "messages, tools, last and score_turns, or a logged call of these."
        )
    return told


def conversation_text(spec: ComparisonSpec) -> str:
    """What the box holds of a spec: nothing of a prompt, messages one below the other, an object where there is more
    than these."""
    told = spec.model_dump(mode="json", exclude_defaults=True)
    held = {name: told[name] for name in CONVERSATION if name in told}
    if "messages" not in held:
        return ""
    return json.dumps(held if len(held) > 1 else held["messages"], indent=1, ensure_ascii=False)


def from_comparison(spec: ComparisonSpec) -> tuple[list[Any], list[LaneForm], dict[str, Any]]:
    """Values in the order of FIELDS, the lanes, and the fields the form does not show."""
    values = spec.model_dump(mode="json")
    plain = {name: "" if values[name] is None else values[name] for name in _PLAIN}
    stress = {place: dial_text(values["stress"][dial.name]) for place, dial in STRESS.items()}
    found = {
        **plain,
        "conversation": conversation_text(spec),
        "no_system": spec.system == "",
        "capture.detail": spec.capture.detail,
        **stress,
    }
    rest = {k: v for k, v in spec.model_dump(mode="json", exclude_defaults=True).items() if k not in _SHOWN}
    return [found[name] for name in FIELDS], from_spec(spec.lanes), rest


def stress_of(values: dict[str, Any]) -> dict[str, Any]:
    """Plain data for Stress from the values of its controls."""
    return {dial.name: read_dial(dial, values[place]) for place, dial in STRESS.items()}
