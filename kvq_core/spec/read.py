"""Specs from plain data and files, every refusal in one line."""

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kvq_core.complaints import check_depth, check_text, first_line
from kvq_core.errors import PATH, SpecError, abbreviate
from kvq_core.methods import methods
from kvq_core.spec.comparison import MAX_LANES, ComparisonSpec
from kvq_core.spec.lane import MAX_RULES, Lane
from kvq_core.spec.rule import Rule

Model = TypeVar("Model", bound=BaseModel)


def parse_spec(data: Any) -> ComparisonSpec:
    """A spec from plain data (parsed JSON or TOML, a form, a link).

    Raises SpecError with one line: the place, what was given, what is allowed.
    """
    if not isinstance(data, dict):
        raise SpecError(f"A comparison is an object with fields such as prompt and lanes, not {type(data).__name__}.")
    check_depth(data, "The comparison")
    lanes = data.get("lanes")
    if isinstance(lanes, list | tuple) and len(lanes) > MAX_LANES:
        raise SpecError(
            f"{len(lanes)} lanes were given; at most {MAX_LANES} are allowed. Remove {len(lanes) - MAX_LANES}."
        )
    if isinstance(lanes, list | tuple):
        for number, lane in enumerate(lanes, 1):
            parse_lane(lane, _lane_name(number, lane))
    try:
        found = ComparisonSpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(first_line(error, ComparisonSpec)) from None
    check_text(data, "The comparison")
    return found


def parse_lane(data: Any, name: str = "") -> Lane:
    """A lane from plain data. Raises SpecError with one line, which begins with the lane's ``name``."""
    rules = data.get("rules") if isinstance(data, dict) else None
    if isinstance(rules, list | tuple) and len(rules) > MAX_RULES:
        start = f"{name}: " if name else ""
        raise SpecError(f"{start}{len(rules):,} rules were given; at most {MAX_RULES} are allowed.")
    for number, rule in enumerate(rules if isinstance(rules, list | tuple) else (), 1):
        parse_rule(rule, f"{name}, rule {number}" if name else f"rule {number}")
    return _parsed(Lane, data, name)


def parse_rule(data: Any, name: str = "") -> Rule:
    """A rule of a lane from plain data. Raises SpecError as ``parse_lane`` does."""
    return _parsed(Rule, data, name)


def _parsed(model: type[Model], data: Any, name: str) -> Model:
    """Plain data as a model of it. Raises SpecError with one line, which begins with what it is called."""
    try:
        return model.model_validate(data)
    except SpecError as error:
        raise SpecError(f"{name}: {error}" if name else str(error)) from None
    except ValidationError as error:
        raise SpecError(first_line(error, model, name)) from None


def _lane_name(number: int, lane: Any) -> str:
    """``lane 2 (SQuat)``: its label, or its method's title."""
    given = lane if isinstance(lane, dict) else {}
    known = methods().get(given["method"]) if isinstance(given.get("method"), str) else None
    label = given.get("label") or (known.title if known else "")
    return f"lane {number} ({label[:60]})" if label and isinstance(label, str) else f"lane {number}"


def read_data(path: Path) -> Any:
    """What a ``.toml`` or ``.json`` file holds. Raises SpecError where it cannot be read."""
    try:
        raw = path.read_bytes()
        return tomllib.loads(raw.decode()) if path.suffix == ".toml" else json.loads(raw)
    except OSError as error:
        raise SpecError(f"Cannot read {abbreviate(str(path), PATH)}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        kind, reason = "TOML" if path.suffix == ".toml" else "JSON", abbreviate(str(error))
        raise SpecError(f"{path.name} is not valid {kind}: {reason}.") from None
