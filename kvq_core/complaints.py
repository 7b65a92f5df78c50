"""pydantic's validation errors as one line for people."""

import json
import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kvq_core.errors import SpecError, excerpt

DEPTH = 64  # lists and objects within each other, of what anybody may send
# pydantic names Python's types; files and links have lists and objects
_PLAIN = {
    "tuple_type": "it must be a list",
    "model_type": "it must be an object",
    "dict_type": "it must be an object",
    "string_type": "it must be text",
}
_LOOKED_AT = 1000  # complaints, of which one is told
_Place = tuple[tuple[int | str, ...], list[type[BaseModel]]]
_SHOULD = re.compile(r"^[A-Z][a-z]+ should")


def check_depth(data: Any, what: str) -> None:
    """Raises SpecError for plain data that is nested deeper than any is: whatever walks through it would fail there."""
    level = [data]
    for _ in range(DEPTH):
        level = [held for each in level for held in _within(each)]
        if not level:
            return
    raise SpecError(f"{what} is nested more than {DEPTH} levels deep; give flatter data.")


def check_text(data: Any, what: str) -> None:
    """Raises SpecError for plain data with a text that holds half a character, as JSON can: no file takes it."""
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise SpecError(f"{what}: {excerpt(value)} holds half a character; leave it out.") from None
        left += [*_within(value), *(value if isinstance(value, dict) else ())]


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


def first_line(error: ValidationError, model: type[BaseModel], name: str = "") -> str:
    """The first complaint: the place, what was given, what is allowed. ``name`` is what the whole data is called."""
    first, (loc, models) = _chosen(error, model)
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).removeprefix(".")
    start = f"{name}: " if name and place else ""
    fields = {field: info for each in models for field, info in each.model_fields.items()}
    if first["type"] == "extra_forbidden":
        return f"{start}Unknown field {excerpt(place)}; allowed: {', '.join(fields)}."
    if first["type"] == "missing":
        return f"{start}{place or 'A field'} is missing."
    said = first["msg"].removeprefix("Value error, ").replace(" after validation", "")
    reason = _PLAIN.get(first["type"], _SHOULD.sub("it must", said))
    if loc and len(loc) < len(first["loc"]) and (field := fields.get(str(loc[-1]))):
        reason = _such_as(field.examples) or field.description or reason  # none of several forms
    return f"{start}{place or name or 'A name'} = {excerpt(first['input'])} is not allowed: {reason.rstrip('.')}."


def _such_as(examples: list[Any] | None) -> str:
    """Of each form that a field takes one, as JSON has it."""
    *others, last = map(json.dumps, examples or [""])
    return f"give such as {', '.join(others)} or {last}" if others else ""


def _chosen(error: ValidationError, model: type[BaseModel]) -> tuple[dict[str, Any], _Place]:
    """The first complaint and its place. Of a field that takes several forms, the form that the data got farthest in:
    what is wrong inside it says more than that it is none of the others."""
    details: list[Any] = error.errors(include_url=False)[:_LOOKED_AT]
    first, (loc, models) = details[0], _place(model, details[0])
    if len(loc) == len(first["loc"]):
        return first, (loc, models)
    every = [(each, _place(model, each)) for each in details]
    rivals = [each for each in every if each[1][0][: len(loc)] == loc]
    found, (place, models) = max(rivals, key=lambda each: len(each[1][0]))
    if len(place) > len(loc):  # a form is named; which of them it was says nothing to people
        return {**found, "loc": place}, (place, models)
    return every[0]


def _place(model: type[BaseModel], error: dict[str, Any]) -> _Place:
    """The fields and numbers that a complaint's place leads through, and the models that may hold the last of the
    fields: behind a field pydantic names the branch of a union it tried, which says nothing to people."""
    kept: list[int | str] = []
    holders, models = [model], [model]
    for part in error["loc"]:
        found = [each for each in models if part in each.model_fields]
        if isinstance(part, int) or found:
            kept.append(part)
        if found:
            holders, models = found, [m for each in found for m in _models(each.model_fields[str(part)].annotation)]
    if error["type"] == "extra_forbidden":
        return (*kept, error["loc"][-1]), models
    return tuple(kept), holders


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that data of such a type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models(each)]
