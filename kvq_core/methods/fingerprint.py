"""What a function computes, as a text: for the id of a run that used it."""

import uuid
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch


def fingerprint(function: Any) -> str:
    """Text that two functions share only where they compute the same: code, constants, defaults, plain values that they
    close over or find as globals, and functions of the same package that they call; those of other packages count by
    name. One that refers to anything else gets a text of its own every time, so that no stored run is taken for its."""
    return repr(_told(function, (getattr(function, "__module__", None) or "").partition(".")[0], []))


def _told(value: Any, package: str, seen: list[Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | complex):
        return repr(value)
    if isinstance(value, tuple | list):
        return [type(value).__name__, *(_told(each, package, seen) for each in value)]
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), value.co_names, [_told(each, package, seen) for each in value.co_consts]]
    if isinstance(value, BuiltinFunctionType | type | FunctionType) and _elsewhere(value, package):
        return ["name", value.__module__, value.__qualname__]
    if any(value is each for each in seen):
        return ["again", next(at for at, each in enumerate(seen) if each is value)]
    if isinstance(value, FunctionType):
        seen.append(value)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        found = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        parts = [value.__code__, value.__defaults__, list((value.__kwdefaults__ or {}).items()), cells, found]
        return [_told(each, package, seen) for each in parts]
    return ["unknown", uuid.uuid4().hex]


def _elsewhere(value: Any, package: str) -> bool:
    """Whether it belongs to another package than the function that is asked about."""
    return (value.__module__ or "").partition(".")[0] not in ("__main__", package)


def _names(code: CodeType) -> list[str]:
    """Names that code, or code within it, looks up."""
    inner = (name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each))
    return list(dict.fromkeys((*code.co_names, *inner)))
