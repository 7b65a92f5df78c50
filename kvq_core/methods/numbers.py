"""Numbers of a spec: true and false are none, though Python takes them for 1 and 0."""

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationInfo, field_validator


def _no_truth(cls: type[BaseModel], given: Any, info: ValidationInfo) -> Any:
    if _has_truth(given) and _asks_numbers(cls.model_fields[str(info.field_name)].annotation):
        raise ValueError("give numbers, not true or false")
    return given


def _has_truth(given: Any) -> bool:
    """Whether it is true or false, or a list that holds one."""
    return isinstance(given, bool) or (isinstance(given, list | tuple) and any(map(_has_truth, given)))


def _asks_numbers(annotation: Any) -> bool:
    """Whether a field of that type takes numbers, and neither true nor false."""
    plain = _plain(annotation)
    return bool not in plain and (int in plain or float in plain)


def _plain(annotation: Any) -> list[type]:
    """The types of which one is made, of a choice those of its values."""
    if get_origin(annotation) is Literal:
        return [type(value) for value in get_args(annotation)]
    parts = get_args(annotation)
    return [own for part in parts for own in _plain(part)] if parts else [annotation]


# a class whose body has it refuses them in all fields, those of its subclasses as well
no_truth = field_validator("*", mode="before")(_no_truth)
