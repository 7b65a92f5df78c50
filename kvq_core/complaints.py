"""pydantic's validation errors as one line for people."""

import re
from itertools import takewhile
from typing import Any

from pydantic import BaseModel, ValidationError

from kvq_core.errors import excerpt

# pydantic names Python's types; files and links have lists and objects
_PLAIN = {
    "tuple_type": "it must be a list",
    "model_type": "it must be an object",
    "dict_type": "it must be an object",
    "string_type": "it must be text",
}
_SHOULD = re.compile(r"^[A-Z][a-z]+ should")


def first_line(error: ValidationError, model: type[BaseModel], name: str = "") -> str:
    """The first complaint: the place, what was given, what is allowed. ``name`` is what the whole data is called."""
    first = error.errors()[0]
    # behind the field, pydantic names the branch of a union it tried, which says nothing to people
    loc = tuple(takewhile(lambda p: isinstance(p, int) or p.isidentifier(), first["loc"]))
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).removeprefix(".")
    start, fields = f"{name}: " if name and place else "", _fields(model, loc)
    if first["type"] == "extra_forbidden":
        return f"{start}Unknown field {excerpt(place)}; allowed: {', '.join(fields)}."
    if first["type"] == "missing":
        return f"{start}{place or 'A field'} is missing."
    reason = _PLAIN.get(first["type"], _SHOULD.sub("it must", first["msg"]))
    if loc != first["loc"]:
        reason = fields[str(loc[-1])].description or reason
    return f"{start}{place or name or 'A name'} = {excerpt(first['input'])} is not allowed: {reason.rstrip('.')}."


def _fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> dict[str, Any]:
    """The fields beside the one that ``loc`` ends with."""
    outer = model.model_fields[str(loc[0])].annotation if len(loc) > 1 else model
    return (outer if isinstance(outer, type) and issubclass(outer, BaseModel) else model).model_fields
