"""Specs that may name a bundle in place of their lanes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kvq_core.complaints import check_depth
from kvq_core.errors import SpecError
from kvq_core.presets.bundles import BUNDLES, bundle_lanes
from kvq_core.sizing.count import CacheAt
from kvq_core.spec import ComparisonSpec, parse_spec, read_data

Where = Callable[[ComparisonSpec], CacheAt]


def parse_placed(data: Any, where: Where | None = None) -> ComparisonSpec:
    """A spec from plain data, where ``bundle`` may stand in place of ``lanes``. ``where`` tells how the cache of a
    spec that has no lanes yet ends up, for bundles that are solved for it; None: a usual one is meant. Raises as
    ``parse_spec`` and ``where`` do."""
    if isinstance(data, dict) and "bundle" in data:
        check_depth(data, "The comparison")
        data = _unbundled(data, where)
    return parse_spec(data)


def with_bundle(spec: ComparisonSpec, words: str, where: Where | None = None) -> ComparisonSpec:
    """A spec with a bundle's lanes instead of its own; ``words``: its name, and its option behind a colon, as in
    ``grid:vllm``; ``where`` as for ``parse_placed``. Raises SpecError as ``bundle_lanes`` does."""
    told = {**spec.model_dump(mode="json", exclude_defaults=True, exclude={"lanes"}), "bundle": bundle_of(words)}
    return parse_placed(told, where)


def bundle_of(words: str) -> dict[str, str]:
    """A bundle as specs have it, from its name, behind which its first option may stand, as in ``equal-loss:0.02``."""
    name, _, value = words.partition(":")
    options = BUNDLES[name].options if name in BUNDLES else {}
    return {"name": name, **({next(iter(options), "option"): value} if value else {})}


def read_spec(path: Path, where: Where | None = None) -> ComparisonSpec:
    """A spec from a ``.toml`` or ``.json`` file; ``where`` as for ``parse_placed``.

    Raises SpecError when the file is missing, unreadable or says something impossible.
    """
    return parse_placed(read_data(path), where)


def _unbundled(data: dict[str, Any], where: Where | None) -> dict[str, Any]:
    """With a bundle's lanes in its place."""
    if data.get("lanes"):
        raise SpecError("bundle and lanes are both given; a bundle stands in place of lanes.")
    rest = {name: value for name, value in data.items() if name != "bundle"}
    asked = None if where is None else partial(_place, where, rest)
    return {**rest, "lanes": bundle_lanes(data["bundle"], asked)}


def _place(where: Where, rest: dict[str, Any]) -> CacheAt:
    return where(parse_spec({**rest, "lanes": []}))
