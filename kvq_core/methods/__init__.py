"""The methods: the contract (``base``), knobs, deployments, and one file or folder a method.

Every module here or below that defines a named Method is found: papers' methods here, what engines ship in ``formats``,
what papers compare with in ``baselines``; ``known`` adds packages' and files of one's own. Imports codecs, codebooks
and the kernels' plain operations. Start at ``base``, then ``kivi``.
"""

from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from rapidfuzz import process

from kvq_core.codebooks.lookup import CodebookNeed
from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.hadamard import largest_block
from kvq_core.codecs.window import Window
from kvq_core.errors import SpecError, excerpt
from kvq_core.methods.base import Fitted, KeySelection, Method, Prompt
from kvq_core.methods.deployments import Home
from kvq_core.methods.formats import NOT_BUILT
from kvq_core.methods.guard import Origin, origin_of
from kvq_core.methods.knob import Knob, knobs
from kvq_core.methods.known import failures, methods
from kvq_core.methods.own import load_method_file, load_method_files
from kvq_core.shape import LayerKind, ModelRef, ModelShape

__all__ = [
    "OFTEN",
    "Block",
    "CodebookNeed",
    "Codec",
    "Fitted",
    "Home",
    "Knob",
    "LayerKind",
    "Method",
    "ModelRef",
    "ModelShape",
    "Origin",
    "Prompt",
    "KeySelection",
    "Window",
    "failures",
    "knobs",
    "largest_block",
    "load_method_file",
    "load_method_files",
    "make",
    "methods",
    "origin_of",
    "selection_from",
    "selections",
]

# one or two of each family, which stand for it where not all are shown
NEAR = 4  # names that an unknown one is told
OFTEN = ("kivi", "innerq", "svdq", "q8_0", "q4_0", "fp8", "nvfp4", "turboquant")


def make(name: str, /, **settings: Any) -> Method:
    """A frozen method from its name and knobs.

    Raises SpecError naming what was given, what is allowed and the nearest name.
    """
    known = methods()
    if name in NOT_BUILT:
        raise SpecError(f"{name} is vLLM's name of a format that is not built: {NOT_BUILT[name]}.")
    if name not in known:
        if name in failures():
            raise SpecError(failures()[name])
        near = [found for found, *_ in process.extract(name, list(known), limit=NEAR, score_cutoff=60)]
        hint = f" Did you mean {near[0]!r}?" if near else ""
        rooms = (f"{__name__}.formats.", f"{__name__}.baselines.")
        papers = [each for each, cls in known.items() if not cls.__module__.startswith(rooms)]
        some = ", ".join(dict.fromkeys([*near, *papers, *OFTEN]))
        raise SpecError(
            f"Unknown method {excerpt(name)}.{hint} Available: {some} and {len(known) - some.count(',') - 1} more, "
            f"which python -m kvq_core methods lists.{_lost()}"
        )
    cls = known[name]
    try:
        return cls(**settings)
    except ValidationError as error:
        raise SpecError(f"{name}: {knob_error(cls, error)}") from None


def _lost() -> str:
    """What else might have been there."""
    return "".join(f" Not loaded: {line}" for line in failures().values())[:300]


@cache
def selections() -> dict[str, type[KeySelection]]:
    """Every selection class by what ``by`` names it, in alphabetical order."""
    methods()  # walks the package
    found: dict[str, type[KeySelection]] = {}
    pending: list[type[KeySelection]] = KeySelection.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        named = get_args(cls.model_fields["by"].annotation)
        if named and cls.__module__.startswith(__name__ + "."):
            found[named[0]] = cls
    return dict(sorted(found.items()))


def selection_from(data: Any) -> KeySelection:
    """A selection from plain data: ``by`` and its knobs. Raises SpecError with what was given and what is allowed."""
    known = selections()
    by = data.get("by") if isinstance(data, dict) else None
    if not isinstance(by, str) or by not in known:
        given = excerpt(data if by is None else by)
        raise SpecError(
            f'select: by = {given} is not allowed; give an object such as {{by = "{next(iter(known))}"}}, '
            f"by one of {', '.join(known)}."
        )
    try:
        return known[by].model_validate(data)
    except ValidationError as error:
        raise SpecError(f"select by {by}: {knob_error(known[by], error)}") from None


def knob_error(cls: type[BaseModel], error: ValidationError) -> str:
    """The first complaint of a validation error in one line: the knob, what was given and what is allowed."""
    first = error.errors()[0]
    path, known, at = [str(part) for part in first["loc"]], {k.name: k for k in knobs(cls)}, 0
    while at + 1 < len(path) and path[at] in known and known[path[at]].fields:  # a knob among an object's own
        known, at = {k.name: k for k in known[path[at]].fields}, at + 1
    where = ".".join(path[: at + 1]) + "".join(f"[{index}]" for index in path[at + 1 : at + 2] if index.isdigit())
    if first["type"] == "extra_forbidden":
        return f"unknown knob {excerpt(where)}; allowed: {', '.join(known) or 'none'}."
    if path and path[at] in known:
        return f"{where} = {excerpt(first['input'])} is not allowed; allowed: {known[path[at]].allowed()}."
    return first["msg"].removeprefix("Value error, ")
