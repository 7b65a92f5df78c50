"""What fits: for every format its tensors' bytes, what engines reserve for them, and the longest contexts that fit
beside the weights."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvq_core.engines import engines
from kvq_core.errors import SpecError, excerpt
from kvq_core.frozen import Frozen
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.sizing.count import NotKnown, PlannedCache, ServedBy
from kvq_core.sizing.reserve import Allowance, allowance
from kvq_core.sizing.weights import Weights
from kvq_core.spec import Lane

MEMORIES = (16, 24, 48, 80, 141)  # GB of common GPUs
CONTEXT = 8_192  # tokens, where none is asked for
LONGEST = 2**20  # tokens looked at where a model's own context is not known
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([TGM]i?)?(B?)", re.IGNORECASE)
_UNITS = {"t": 10**12, "ti": 2**40, "g": 10**9, "gi": 2**30, "m": 10**6, "mi": 2**20}
_GB = 1024  # a number alone up to here can be GB only: as bytes, or as MB, no model fits into it


@dataclass(frozen=True)
class ShippedFormat:
    """A format that engines ship: ``name`` in words, the lane that stores so, and what engines call it."""

    name: str
    lane: Lane
    engines: dict[str, str]


class Reserve(Frozen):
    """A format in an engine: its ``word`` there, the bytes ``reserved`` (None: not known how), whether weights, cache
    and allowance ``fit`` the memory asked for, and the longest context of each of MEMORIES, in GB: 0 where not even one
    page fits, None where the weights or the reserve are not known. ``batched_tokens``: new tokens that the engine was
    taken to read at once, of which its share of sliding layers hangs; in ``contexts`` as it does on such a card."""

    engine: str
    version: str
    word: str
    reserved: int | None
    fits: bool | None
    contexts: dict[int, int | None]
    batched_tokens: int | None = None


class FormatFit(Frozen):
    """``tensors``: bytes of keys, values and states; None with ``why_not``."""

    name: str
    method: str
    knobs: dict[str, Any]
    tensors: int | None
    why_not: str | None
    engines: tuple[Reserve, ...]


class Layers(Frozen):
    """So many layers that hold the same."""

    count: int
    holds: LayerKind


class Fit(Frozen):
    """All of it, for ``batch`` sequences of ``context`` tokens. ``memory``: asked for, in bytes; ``unknown``: what the
    configuration does not say."""

    title: str
    architecture: str
    own_context: int | None
    context: int
    batch: int
    memory: int | None
    layers: tuple[Layers, ...]
    weights: Weights
    allowance: Allowance
    formats: tuple[FormatFit, ...]
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class FitRequest(Frozen):
    """What it is to fit. ``memory`` in bytes; ``batched_tokens``: new tokens that engines read at once, as each does by
    itself where that is None."""

    memory: int | None = None
    context: int | None = None
    batch: int = 1
    batched_tokens: int | None = None


def memory_of(given: str) -> int:
    """Bytes of ``24GB``, ``22.5 GiB`` or ``24``. Raises SpecError."""
    read = _MEMORY.fullmatch(given.strip())
    unit = read and (read[2] or ("g" if not read[3] and float(read[1]) <= _GB else None))
    if read is None or unit is None or not float(read[1]):
        raise SpecError(
            f"memory = {excerpt(given)} is not allowed; give a number with its unit, such as 24GB or 80GiB."
        )
    return round(float(read[1]) * _UNITS[unit.lower()])


def is_configuration(place: str) -> bool:
    """Whether a model is a folder that has a configuration and no weights, so that nothing of it can be run."""
    try:
        folder = Path(place)
        return (folder / "config.json").is_file() and not any(folder.glob("*.safetensors"))
    except OSError:
        return False


def fit(title: str, shape: ModelShape, weights: Weights, asked: FitRequest, formats: Sequence[ShippedFormat]) -> Fit:
    own = shape.context or None
    context = asked.context or min(own or CONTEXT, CONTEXT)
    return Fit(
        title=title,
        architecture=shape.architecture,
        own_context=own,
        context=context,
        batch=asked.batch,
        memory=asked.memory,
        layers=tuple(Layers(count=count, holds=layer) for layer, count in Counter(shape.kinds).items()),
        weights=weights,
        allowance=allowance(),
        formats=tuple(_format(each, shape, weights, asked, context) for each in formats),
        warnings=_warnings(shape, context),
        unknown=(*shape.stated, *(["bytes of the weights"] if weights.nbytes is None else [])),
    )


def _format(format: ShippedFormat, shape: ModelShape, weights: Weights, asked: FitRequest, context: int) -> FormatFit:
    named = {"name": format.name, "method": format.lane.method, "knobs": format.lane.knobs}
    cache = PlannedCache(format.lane, shape)
    found = cache.bytes(context, context, asked.batch)
    if isinstance(found, NotKnown):
        return FormatFit(**named, tensors=None, why_not=found.reason, engines=())
    longest = shape.context or LONGEST
    rows = (_reserve(cache, *called, weights.nbytes, asked, context, longest) for called in format.engines.items())
    return FormatFit(**named, tensors=found.tensors, why_not=None, engines=tuple(rows))


def _reserve(
    cache: PlannedCache, name: str, word: str, weights: int | None, asked: FitRequest, context: int, longest: int
) -> Reserve:
    allowed = allowance()

    def on(memory: int | None) -> ServedBy:
        return ServedBy(name, memory, asked.batched_tokens)

    taken = cache.reserved(on(asked.memory), context, asked.batch)
    fits: bool | None = None
    contexts: dict[int, int | None] = dict.fromkeys(MEMORIES)
    if taken is not None and weights is not None:
        fits = None if asked.memory is None else weights + taken <= allowed.left(asked.memory)

        def most(memory: int) -> int:
            served, room = on(memory), allowed.left(memory) - weights
            return bisect_right(range(1, longest + 1), room, key=lambda n: cache.reserved(served, n, asked.batch) or 0)

        contexts = {memory: most(memory * 10**9) for memory in MEMORIES}
    return Reserve(
        engine=name,
        version=engines()[name].version,
        word=word,
        reserved=taken,
        fits=fits,
        contexts=contexts,
        batched_tokens=on(asked.memory).at_once,
    )


def _warnings(shape: ModelShape, context: int) -> tuple[str, ...]:
    said = []
    if 0 < shape.context < context:
        said.append(f"{context:,} tokens are more than the model's own context of {shape.context:,}.")
    if any(layer.kind == "latent" for layer in shape.kinds):
        said.append("Its layers cache a latent (MLA); engines that store keys and values instead take many times more.")
    return tuple(said)
