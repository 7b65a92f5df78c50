"""Bits an element of every format that engines ship, by head_dim, as real packed tensors take them: writes
``presets/sizing/formats.json``. They depend on shapes alone, so any machine gives the same.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvq_core.engines import engines
from kvq_core.methods import Method, ModelShape, methods
from kvq_core.presets import bundle_lanes
from kvq_core.sizing.formats import FILE, HEAD_DIMS
from kvq_core.sizing.stored import encoded_bits
from kvq_core.spec import Lane

LAYERS = 32


def main() -> None:
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows())
    FILE.write_text(f'{{"formats": [\n{lines}\n]}}\n', encoding="utf-8")


def rows(head_dims: tuple[int, ...] = HEAD_DIMS) -> list[dict[str, Any]]:
    """Every format at its defaults and as bundles set it, unquantized ones first; without those that store something
    whatever the context, whose bytes depend on more than head_dim."""
    shape = ModelShape(LAYERS, 8, 8, 128, 8192)
    found: dict[Method, list[str]] = {make: [] for make in (methods()["fp16"](), methods()["bf16"]())}
    for name, cls in methods().items():
        if ".formats." in cls.__module__:
            found.setdefault(cls(), []).append(name)
    for given in bundle_lanes("deploy"):
        found.setdefault(Lane(**given).build(), []).append(given["label"])
    kept = [(method, names) for method, names in found.items() if not any(method.fixed_bytes(shape))]
    made = [_row(method, names, head_dims) for method, names in kept]
    taken = [json.dumps([row["method"], row["engines"], row["bits"]]) for row in made]
    return [row for at, row in enumerate(made) if taken[at] not in taken[:at]]  # knobs that change no bytes, no word


def _row(method: Method, names: list[str], head_dims: tuple[int, ...]) -> dict[str, Any]:
    words = {name: engine.plain for name, engine in engines().items() if engine.plain} if method.name == "fp16" else {}
    cached = next((name for name in names if name.startswith("transformers ")), None)
    if cached is not None:
        words = {"transformers": cached.removeprefix("transformers ")}
    if method.name == "fp16":
        words["transformers"] = "DynamicCache"
    return {
        "name": _name(method, names),
        "method": method.name,
        "knobs": method.model_dump(mode="json", exclude_defaults=True),
        "engines": {**method.cache_types, **words},
        "windows": [[w.sink, w.recent, w.step or 1, w.whole_prompt] for w in method.windows()],
        "boundary": len(method.kept_layers(LAYERS)) // 2,
        "bits": {dim: bits for dim in head_dims if (bits := _bits(method, dim)) is not None},
    }


def _name(method: Method, names: list[str]) -> str:
    """Its own where it is at its defaults, else with what the bundle's label says behind the engine."""
    if method.name in names or not names:
        return method.name
    said = names[0].split(" ", 1)[1]
    return said if said.startswith(method.name) else f"{method.name} {said}"


def _bits(method: Method, head_dim: int) -> tuple[float, float] | None:
    """None where it cannot store heads of so many channels."""
    if method.why_not(ModelShape(LAYERS, 8, 8, head_dim, 8192)):
        return None
    key, value = (encoded_bits(method, tensor, head_dim) for tensor in (0, 1))
    return round(key * head_dim, 2) / head_dim, round(value * head_dim, 2) / head_dim


if __name__ == "__main__":
    main()
