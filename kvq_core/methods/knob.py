"""The knobs of a method, read from its fields, as forms, the command line and the documentation see them."""

import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Knob:
    """One field of a method as forms, the CLI and the documentation see it.

    ``minimum`` and ``maximum`` bound a number, or every number of a list of ``length``; ``pattern`` is what text must
    match. ``named``: values the paper names, by name. ``fields``: the knobs of an object.
    """

    name: str
    title: str
    help: str
    type: Literal["choice", "integer", "number", "boolean", "list", "text", "object"]
    default: Any
    minimum: float | None
    maximum: float | None
    choices: tuple[Any, ...] | None
    nullable: bool
    length: int | None = None
    pattern: str | None = None
    named: dict[str, Any] = field(default_factory=dict)
    fields: tuple["Knob", ...] = ()

    def allowed(self) -> str:
        """The allowed values in words."""
        if self.choices:
            words = ", ".join(map(str, self.choices))
        elif self.fields:
            words = f"{self.type} of {', '.join(f'{f.name} ({f.allowed()})' for f in self.fields)}"
        elif self.type == "list":
            words = f"list of {self.length or ''} numbers{self._range()}".replace("  ", " ")
            if self.named:
                words += f", such as {'; '.join(f'{value} ({name})' for name, value in self.named.items())}"
        elif self.pattern:
            words = f"{self.type} that matches {self.pattern}"
        else:
            words = self.type + self._range()
        return words + " or null" if self.nullable else words

    def _range(self) -> str:
        if self.minimum is None and self.maximum is None:
            return ""
        low = "any" if self.minimum is None else f"{self.minimum:g}"
        high = "any" if self.maximum is None else f"{self.maximum:g}"
        return f" from {low} to {high}"


def knobs(method: type[BaseModel]) -> list[Knob]:
    """The knobs of a method class, or of an object among them, in declaration order, read from the fields."""
    found = []
    for name, info in method.model_fields.items():
        kind, nullable = _strip_optional(info.annotation)
        bounds = _constraints(info.metadata, "ge", "le", "max_length", "pattern")
        if get_origin(kind) is tuple:
            bounds |= _constraints(_metadata(get_args(kind)[0]), "ge", "le")
        choices = get_args(kind) if get_origin(kind) is Literal else None
        found.append(
            Knob(
                name=name,
                title=info.title or name.replace("_", " "),
                help=info.description or "",
                type=_kind(kind),  # type: ignore[arg-type]
                default=info.get_default(call_default_factory=True),
                minimum=bounds.get("ge"),
                maximum=bounds.get("le"),
                choices=choices,
                nullable=nullable,
                length=bounds.get("max_length") if get_origin(kind) is tuple else None,
                pattern=bounds.get("pattern"),
                named=(info.json_schema_extra or {}).get("named", {}),  # type: ignore[union-attr, arg-type]
                fields=tuple(knobs(kind)) if _is_object(kind) else (),
            )
        )
    return found


def _constraints(metadata: Iterable[Any], *names: str) -> dict[str, Any]:
    """Constraints pydantic keeps as objects in a field's metadata, by name."""
    return {name: value for m in metadata for name in names if (value := getattr(m, name, None)) is not None}


def _metadata(annotation: Any) -> list[Any]:
    """Of ``Annotated[int, Field(ge=0)]``: the constraints, as pydantic reads them."""
    return FieldInfo.from_annotation(annotation).metadata


def _strip_optional(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [a for a in get_args(annotation) if a is not type(None)]
        several = len(rest) > 1  # such as a word or numbers: written as text
        return str if several else rest[0], len(rest) < len(get_args(annotation))
    return annotation, False


def _is_object(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "choice"
    if get_origin(annotation) in (list, tuple):
        return "list"
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(annotation, "object")
