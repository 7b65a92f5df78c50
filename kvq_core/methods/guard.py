"""Methods from outside this project: where one comes from, whether it is one, and the class that lanes use in its
place, whose failures name it."""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import ValidationError
from torch import Tensor

from kvq_core.codecs.codec import Codec
from kvq_core.codecs.watched import WatchedCodec, errors_of
from kvq_core.codecs.window import Window
from kvq_core.errors import MethodError, SpecError, abbreviate, excerpt
from kvq_core.methods.base import Fitted, Method, Prompt, Select
from kvq_core.methods.eviction import Evicting
from kvq_core.methods.knob import knobs
from kvq_core.shape import ModelRef, ModelShape

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


@dataclass(frozen=True)
class Origin:
    """Where a method comes from. ``words`` for people: ``my.py``, ``package my-kvq 1.2``; ``version`` is part of a
    run's id: the sha256 of the file, the package and its version, or the hash of a function. ``place`` tells files of
    one name apart, and is shown nowhere."""

    words: str
    version: str
    place: str = ""

    def whose(self, name: str) -> str:
        """What begins a refusal: ``mine (my.py)``."""
        return f"{name} ({self.words})"

    @property
    def note(self) -> str:
        """What a lane's card and record say: ``from my.py, sha256 0123456789ab``."""
        return f"from {self.words}{f', sha256 {self.version[:12]}' if self.place else ''}"


def why_no_method(cls: Any, origin: Origin) -> SpecError | None:
    """Why something is no method that can be offered, in one line; None where it is one."""
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return SpecError(
            f"{origin.words}: name = {excerpt(name)} of {cls.__name__} is not allowed; give a letter, then up to 39 "
            "letters, digits and underscores."
        )
    try:
        said = _missing(cls)
    except ValidationError as error:
        first = error.errors()[0]
        said = f"its knobs have no sound defaults: {'.'.join(map(str, first['loc'])) or 'all'}: {first['msg']}"
    except Exception as error:  # it is anybody's code
        said = f"{type(error).__name__}: {error}"
    return None if said is None else SpecError(f"{origin.whose(name)}: {abbreviate(said, 300)}.")


def _missing(cls: type[Method]) -> str | None:
    """What a method class lacks before any model is there."""
    if left := sorted(getattr(cls, "__abstractmethods__", ())):
        return f"it does not define {' and '.join(left)}"
    if not isinstance(getattr(cls, "title", None), str) or not cls.title.strip():
        return "it has no title"
    built = cls()
    windows = built.windows()
    if not (isinstance(windows, tuple) and len(windows) == 2 and all(isinstance(w, Window) for w in windows)):
        return "windows gives no pair of Windows"
    if not all(isinstance(words, str) for words in (built.summary(), built.short())):
        return "summary and short give no text"
    knobs(cls)
    return None


def guard(cls: type[Method], origin: Origin) -> type[Method]:
    """``cls`` as lanes use it: its fit and its codecs are watched, and its origin is in the id of a run."""

    class Guarded(cls):  # type: ignore[valid-type, misc]
        guards: ClassVar[Origin] = origin

        scales = vars(cls).get("scales", Method.scales)
        elsewhere = cls.elsewhere

        def fit(self, prompt: Prompt) -> Fitted:
            with errors_of(whose := origin.whose(cls.name)):
                fitted = _watched(super().fit(prompt), self.windows(), whose)
                return replace(fitted, notes=(*fitted.notes, origin.note))

        def why_not(self, shape: ModelShape) -> str | None:
            try:
                return super().why_not(shape)
            except Exception as error:  # it is asked where nothing may fail
                return abbreviate(f"why_not raised {type(error).__name__}: {' '.join(str(error).split())}", 300)

        def data_hash(self, model: ModelRef) -> str | None:
            own = super().data_hash(model)
            return origin.version if own is None else f"{origin.version} {own}"

    Guarded.__doc__, Guarded.__name__, Guarded.__qualname__ = cls.__doc__, cls.__name__, cls.__qualname__
    Guarded.__module__ = cls.__module__
    return Guarded


@dataclass(frozen=True)
class _Choice:
    """A select whose errors name the method it is of; whether it is sound is seen where it is asked."""

    select: Select
    whose: str

    def __call__(self, layer: int, queries: Tensor, tokens: int) -> Tensor:
        with errors_of(self.whose):
            return self.select(layer, queries, tokens)


def _watched(fitted: Fitted, windows: tuple[Window, Window], whose: str) -> Fitted:
    """Raises MethodError where it is not what a lane can be made from."""
    if not isinstance(fitted, Fitted):
        raise MethodError(f"fit gave {type(fitted).__name__}, not Fitted")
    watched: list[Codec | None] = []
    for codec, window, tensor in zip((fitted.key, fitted.value), windows, ("keys", "values"), strict=True):
        if codec is None and window.step is not None:
            raise MethodError(f"fit gave no codec for {tensor}, and their window lets tokens leave")
        if codec is not None and not isinstance(codec, Codec):
            raise MethodError(f"fit gave {type(codec).__name__} for {tensor}, not a Codec")
        watched.append(codec if codec is None or isinstance(codec, WatchedCodec) else WatchedCodec(codec, whose))
    select = fitted.select
    if select is not None and not isinstance(select, Evicting):  # those are known by their class
        select = _Choice(select, whose)
    return replace(fitted, key=watched[0], value=watched[1], notes=tuple(map(str, fitted.notes)), select=select)


def origin_of(cls: type[Method]) -> Origin | None:
    """Where a method of ``methods()`` comes from; None for those of this project."""
    return getattr(cls, "guards", None)
