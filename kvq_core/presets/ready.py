"""Ready experiments: one TOML file each in ``presets/``, data only."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvq_core.errors import SpecError, did_you_mean, excerpt
from kvq_core.frozen import Frozen
from kvq_core.presets.read import parse_placed
from kvq_core.shipped import shipped
from kvq_core.spec import ComparisonSpec

FOLDER = shipped()


class Preset(Frozen):
    """One experiment: what it asks, the comparison, and where to look for the answer."""

    name: str
    title: str
    question: str
    look_at: tuple[str, ...]
    claim: str | None = None  # the claim of a paper it bears on
    chip: bool = False  # one of the few that the page offers as buttons; the others are in a list
    spec: ComparisonSpec


@cache
def presets() -> dict[str, Preset]:
    """Every preset by name, ``first-look`` first, the rest in alphabetical order.

    Raises SpecError naming the file that says something impossible.
    """
    files = sorted(FOLDER.glob("*.toml"), key=lambda f: (f.stem != "first-look", f.stem))
    return {file.stem: _read(file) for file in files}


def preset(name: str) -> Preset:
    """The preset of that name. Raises SpecError with the nearest name and the list."""
    known = presets()
    if name not in known:
        raise SpecError(f"Unknown preset {excerpt(name)}.{did_you_mean(name, known)} Available: {', '.join(known)}.")
    return known[name]


def _read(file: Path) -> Preset:
    with errors_named(f"presets/{file.name}"):
        data: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        spec = parse_placed(data.pop("spec", None))
        return Preset(name=file.stem, spec=spec, **data)


@contextmanager
def errors_named(file: str) -> Iterator[None]:
    """Whatever reading a file of data raises, as a SpecError that names the file and the place in it."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{file}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}.") from None
