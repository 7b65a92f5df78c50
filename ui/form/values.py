"""The left column's values as a spec, and a spec as values for it."""

from typing import Any

from kvq_core.spec import ComparisonSpec, parse_spec
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
    *STRESS,
)
_PLAIN = tuple(name for name in FIELDS if name != "no_system" and "." not in name)
_SHOWN = {*_PLAIN, "lanes", "stress"}


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
    return parse_spec(data)


def from_comparison(spec: ComparisonSpec) -> tuple[list[Any], list[LaneForm], dict[str, Any]]:
    """Values in the order of FIELDS, the lanes, and the fields the form does not show."""
    values = spec.model_dump(mode="json")
    plain = {name: "" if values[name] is None else values[name] for name in _PLAIN}
    stress = {place: dial_text(values["stress"][dial.name]) for place, dial in STRESS.items()}
    found = {**plain, "no_system": spec.system == "", "capture.detail": spec.capture.detail, **stress}
    rest = {k: v for k, v in spec.model_dump(mode="json", exclude_defaults=True).items() if k not in _SHOWN}
    return [found[name] for name in FIELDS], from_spec(spec.lanes), rest


def stress_of(values: dict[str, Any]) -> dict[str, Any]:
    """Plain data for Stress from the values of its controls."""
    return {dial.name: read_dial(dial, values[place]) for place, dial in STRESS.items()}
