"""Which methods there are: those of this project, those of installed packages, and those that were named."""

import importlib
import pkgutil
import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from kvq_core.errors import SpecError, abbreviate
from kvq_core.methods.base import Method
from kvq_core.methods.guard import Origin, guard, origin_of, why_no_method

GROUP = "kvq.methods"  # of entry points: a Method, or a module that defines some
_ROOM = "kvq_core.methods"


class _Own:
    """Methods from outside, by name."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.found: dict[str, type[Method]] = {}
        self.failures: dict[str, str] = {}  # entry points that gave none, by name, each with its line
        self.asked = False  # whether the entry points have been looked at
        self.view: Mapping[str, type[Method]] | None = None


_own = _Own()


@cache
def built_in() -> Mapping[str, type[Method]]:
    """Every method class of this project by name."""
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], f"{_ROOM}."):
        importlib.import_module(module.name)
    found: dict[str, type[Method]] = {}
    pending: list[type[Method]] = Method.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "name" in vars(cls) and cls.__module__.startswith(f"{_ROOM}."):
            found[cls.name] = cls
    return MappingProxyType(dict(sorted(found.items())))


def methods() -> Mapping[str, type[Method]]:
    """Every method class by name, in alphabetical order; nobody can change it."""
    view = _own.view
    if view is None:
        with _own.lock:
            _load_entry_points()
            view = _own.view = MappingProxyType(dict(sorted({**built_in(), **_own.found}.items())))
    return view


def failures() -> Mapping[str, str]:
    """Entry points of installed packages that gave no method, by name: a line each."""
    methods()
    return MappingProxyType(dict(_own.failures))


def register(cls: type[Method], origin: Origin) -> type[Method]:
    """Offer a method from outside under its name; the class that lanes use in its place.

    Registering the same again changes nothing, and a file that has changed takes the place of what it was. Raises
    SpecError where it is no method, or its name is taken.
    """
    if error := why_no_method(cls, origin):
        raise error
    with _own.lock:
        known = {**built_in(), **_own.found}.get(cls.name)
        if known is not None:
            if (other := origin_of(known)) == origin:
                return known
            if other is None or not origin.place or other.place != origin.place:
                raise SpecError(
                    f"{origin.words}: a method {cls.name!r} is there already ({_whence(other)}); give it another name."
                )
        made = _own.found[cls.name] = guard(cls, origin)
        _own.view = None
        return made


def forget(name: str) -> None:
    """Take back what ``register`` did, for a name that it knows."""
    with _own.lock:
        _own.found.pop(name, None)
        _own.view = None


def _whence(origin: Origin | None) -> str:
    return "of this project" if origin is None else origin.words


def own_methods(module: ModuleType) -> list[type[Method]]:
    """The methods a module itself defines, those that have a name of their own."""
    classes = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Method))
    return [cls for cls in classes if cls.__module__ == module.__name__ and "name" in vars(cls)]


def _load_entry_points() -> None:
    """Once a process. A package that is broken costs its own methods, and a line for whoever asks for them."""
    if _own.asked:
        return
    _own.asked = True
    for each in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        try:
            _enter(each)
        except Exception as error:  # it is anybody's code
            said = str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
            _own.failures[each.name] = f"{_package(each)[0]}: entry point {each.name!r}: {_short(said)}"


def _enter(each: EntryPoint) -> None:
    origin = Origin(*_package(each))
    given: Any = each.load()
    some = own_methods(given) if isinstance(given, ModuleType) else [given]
    if not some or not all(isinstance(cls, type) and issubclass(cls, Method) for cls in some):
        raise SpecError(f"{each.value} is no Method, and no module that defines one.")
    for cls in some:
        register(cls, origin)


def _package(each: EntryPoint) -> tuple[str, str]:
    """The package of an entry point in words, and with its version as an id has it."""
    if each.dist is None:
        return f"entry point {each.name}", each.value
    name, version = each.dist.name, each.dist.version
    return f"package {name} {version}", f"{name}=={version}"


def _short(said: str) -> str:
    return abbreviate(" ".join(said.split()), 200)
