"""Methods from a file of one's own, named when a program starts."""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from importlib.abc import ExecutionLoader
from pathlib import Path
from types import ModuleType

from kvq_core.errors import PATH, KvqError, SpecError, abbreviate
from kvq_core.methods.guard import Origin, origin_of
from kvq_core.methods.known import forget, methods, own_methods, register

_MODULES = "kvq_method_files"
_loading: ContextVar[Origin | None] = ContextVar("_loading", default=None)


class _Source(ExecutionLoader):
    """Runs the very bytes that were hashed: no cached code, and no second reading of a file that may have changed."""

    def __init__(self, raw: bytes, file: Path):
        self.raw, self.file = raw, file

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.raw)

    def get_filename(self, fullname: str) -> str:
        return str(self.file)


def origin_now() -> Origin | None:
    """The file that is being loaded; None outside of that."""
    return _loading.get()


def load_method_files(files: Iterable[Path]) -> None:
    """``load_method_file`` of each. Raises SpecError for the first that holds none."""
    for file in files:
        load_method_file(file)


def load_method_file(file: Path) -> tuple[str, ...]:
    """Offer the methods that a Python file defines: classes that derive from Method and have a name, and functions that
    it hands to ``from_function``. Their names; their origin is the file, by its sha256.

    Raises SpecError with one line: a file that cannot be read or raises, that holds no method, a name that is taken.
    """
    try:
        raw, place = file.read_bytes(), str(file.resolve())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"Cannot read the method file {abbreviate(str(file), PATH)}: {reason}.") from None
    origin = Origin(file.name, hashlib.sha256(raw).hexdigest(), place)
    if held := _names(origin):
        return held
    token = _loading.set(origin)
    try:
        _register_all(_run(raw, file, origin), origin)
    except BaseException:
        for name in _names(origin):  # all of a file, or nothing
            forget(name)
        raise
    finally:
        _loading.reset(token)
    if not (names := _names(origin)):
        raise SpecError(
            f"{file.name} holds no method: define a class that derives from kvq_core.methods.Method and has a name, or "
            "call kvq_core.from_function."
        )
    return names


def _names(origin: Origin) -> tuple[str, ...]:
    return tuple(name for name, cls in methods().items() if origin_of(cls) == origin)


def _register_all(module: ModuleType, origin: Origin) -> None:
    classes = own_methods(module)
    twice = [cls.name for at, cls in enumerate(classes) if any(cls.name == other.name for other in classes[:at])]
    if twice:
        raise SpecError(f"{origin.words}: two methods are named {twice[0]!r}; give one another name.")
    for cls in classes:
        register(cls, origin)


def _run(raw: bytes, file: Path, origin: Origin) -> ModuleType:
    """The file as a module of its own. Raises SpecError where it raises, with the line it did so at."""
    name = f"{_MODULES}.{file.stem}_{origin.version[:12]}"
    spec = importlib.util.spec_from_loader(name, _Source(raw, file), origin=str(file))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    module.__file__ = str(file)
    try:
        spec.loader.exec_module(module)
    except KvqError as error:
        del sys.modules[name]
        raise SpecError(f"{file.name}: {str(error).removeprefix(f'{file.name}: ')}") from None
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        where = f"line {line}: " if (line := _line_of(error, file)) else ""
        said = abbreviate(f"{type(error).__name__}: {error}".removesuffix(": "), 300)
        raise SpecError(f"{file.name} cannot be loaded: {where}{said}") from None
    return module


def _line_of(error: BaseException, file: Path) -> int | None:
    """The last line of the file that an error passed through."""
    if isinstance(error, SyntaxError):
        return error.lineno
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
