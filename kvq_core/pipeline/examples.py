"""The stored runs that ship with the app: which they are and where they lie.

``python -m kvq_core.pipeline.examples`` computes them again, after a change of results or of
presets/learn/examples.toml.
"""

import sys
import tomllib
from functools import cache
from typing import Any

from pydantic import ValidationError

from kvq_core.errors import KvqError, SpecError
from kvq_core.frozen import Frozen
from kvq_core.presets import FOLDER, preset
from kvq_core.record.shipped import RUNS, packaged_store
from kvq_core.record.store import Store
from kvq_core.spec import ComparisonSpec, parse_spec

FILE = FOLDER / "learn" / "examples.toml"
MOST_BYTES = 25_000_000  # of all of them together


class Example(Frozen):
    """A preset's comparison with some fields replaced; lanes and model are the preset's own where none are given."""

    name: str
    title: str
    preset: str
    capture: dict[str, Any]
    lanes: list[dict[str, Any]] | None = None
    model: str | None = None
    reference: str | None = None

    @property
    def spec(self) -> ComparisonSpec:
        """Raises SpecError where the example says something impossible."""
        base = preset(self.preset).spec.model_dump(mode="json")
        changes = {"lanes": self.lanes, "model": self.model, "reference": self.reference}
        given = {name: value for name, value in changes.items() if value is not None}
        return parse_spec({**base, "capture": self.capture, **given})


@cache
def examples() -> dict[str, Example]:
    """Every example by name. Raises SpecError when the file cannot be understood."""
    try:
        found = [Example(**entry) for entry in tomllib.loads(FILE.read_text(encoding="utf-8"))["examples"]]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise SpecError(f"presets/learn/{FILE.name} cannot be read: {error}.") from None
    return {example.name: example for example in found}


def example_ids(runs: Store | None = None) -> dict[str, str]:
    """Run id of every example that is there, by name. A run belongs to the example whose comparison it is."""
    runs = runs or packaged_store()
    specs = {example.spec.canonical(): name for name, example in examples().items()}
    found = {}
    for summary in runs.list():
        record, _ = runs.load(summary.id)
        name = specs.get(parse_spec(record.spec).canonical())
        if name:
            found[name] = summary.id
    return found


def main() -> int:
    """Compute every example into the packaged store, and throw out what is no example of today. Those on another
    model than the bundled one stay as they are where it is not on this machine."""
    from kvq_core.models import available_models
    from kvq_core.pipeline.compare import run

    runs = packaged_store()
    held, here = example_ids(runs), {choice.id for choice in available_models()}
    fresh = set()
    for example in examples().values():
        print(f"{example.name}: {len(example.spec.lanes)} lanes", file=sys.stderr)
        if example.spec.model not in here and example.name in held:
            print(f"its model is not here: kept as it is ({held[example.name]})", file=sys.stderr)
            fresh.add(held[example.name])
        else:
            fresh.add(run(example.spec, runs).id)
    for folder in RUNS.iterdir():
        if folder.name not in fresh:
            runs.fs.rm(str(folder), recursive=True)
    size = sum(file.stat().st_size for file in RUNS.rglob("*") if file.is_file())
    print(f"{len(fresh)} runs, {size / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f} MB", file=sys.stderr)
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvqError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
