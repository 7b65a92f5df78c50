"""The tensors of a file that an edit changes, as the bytes they become."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind

from kvq_core.errors import ModelError, excerpt
from kvq_core.mend.blocks import MEANT, dequantized, errors, floats_as, scaled
from kvq_core.models.gguf.conversion import planned
from kvq_core.models.gguf.families import FAMILIES
from kvq_core.models.gguf.family import Family
from kvq_core.models.gguf.header import Header, TensorEntry

MOST_ERROR = 0.01  # of a row, in parts of it
_ROWS = 2048  # that are held as numbers at once


@dataclass(frozen=True)
class TensorChange:
    """One tensor's new bytes; ``kind``: the type they are of, F16 where the file's own cannot hold its scales."""

    entry: TensorEntry
    data: bytes
    kind: Kind

    @property
    def retyped(self) -> bool:
        return self.kind != self.entry.kind


def changes_of(header: Header, factors: Mapping[str, np.ndarray]) -> list[TensorChange]:
    """What a GGUF file's tensors become; ``factors``: of rows, by transformers' names of parameters.

    Raises ModelError for a tensor that does not lie in the file by itself, or of a type without scales.
    """
    model, targets = planned(header)
    family, found = FAMILIES[header.architecture], []
    for name, factor in sorted(factors.items()):
        target = targets.get(name)
        if target is None or target.experts:
            raise ModelError(f"{header.path.name} cannot be mended: it holds no tensor for {name} alone.")
        [entry] = target.entries
        if entry.kind not in MEANT:
            raise ModelError(f"{header.path.name} cannot be mended: {entry.name} is of type {entry.kind.name}.")
        found.append(_change(header.path, entry, in_file_order(family, entry.name, factor, model.config)))
    return found


def in_file_order(family: Family, name: str, factor: np.ndarray, config: object) -> np.ndarray:
    """Factors of rows in transformers' order, in the order that the file has them."""
    if "norm" in name:
        return factor
    own = family.weights(name, np.arange(len(factor))[:, None], config)[:, 0]
    found = np.empty_like(factor)
    found[own] = factor
    return found


def _change(path: Path, entry: TensorEntry, factors: np.ndarray) -> TensorChange:
    raw = np.fromfile(path, np.uint8, entry.size, offset=entry.start).reshape(len(factors), -1)
    new, kind, changed = raw.copy(), entry.kind, _parts(np.flatnonzero(factors != 1))
    for some in changed:
        new[some] = scaled(raw[some], kind, factors[some])
        plain = kind in (Kind.F32, Kind.F16, Kind.BF16)
        if not plain and not errors(raw[some], new[some], kind, factors[some]).max() <= MOST_ERROR:
            new, kind = _as_halves(raw, kind, factors), Kind.F16
            break
    if not all(np.isfinite(dequantized(new[some], kind)).all() for some in changed):
        raise ModelError(f"{path.name} cannot be mended: {excerpt(entry.name)} holds no numbers.")
    return TensorChange(entry, new.tobytes(), kind)


def _as_halves(raw: np.ndarray, kind: Kind, factors: np.ndarray) -> np.ndarray:
    every = (
        floats_as(dequantized(raw[some], kind) * factors[some, None], Kind.F16) for some in _parts(np.arange(len(raw)))
    )
    return np.concatenate(list(every))


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[at : at + _ROWS] for at in range(0, len(rows), _ROWS)]
