"""The table of docs/models.md: which kinds of models run, of what benchmarks/architectures.py wrote."""

from collections import Counter
from statistics import median
from typing import Any

from benchmarks.measured import figures, table


def models_part() -> str:
    found = figures("architectures") or {}
    runs = {kind: told for kind, told in found.items() if "refused" not in told}
    refused = {kind: told["refused"] for kind, told in found.items() if "refused" in told}
    rows = (
        (f"`{kind}`", _layers(told), _special(told), f"{told['reference']:.0e}", f"{told['fp16']:.0e}")
        for kind, told in runs.items()
    )
    ran = table("Kind | Layers | What is special | Reference | fp16 rows", *rows)
    why = table("Kind | Why", *((f"`{kind}`", why) for kind, why in refused.items()))
    return "\n\n".join([*filter(None, [_times()]), ran, "Refused:", why])


def _times() -> str | None:
    """How long loading and running takes; None where it was not measured."""
    found = figures("architecture_times")
    if not found:
        return None
    seconds = {kind: told["load_s"] + told["run_s"] for kind, told in found.items()}
    slowest = max(seconds, key=lambda kind: seconds[kind])
    return (
        f"A tiny model of each kind is read from its folder, looked at and compared in four lanes with captures in "
        f"{median(seconds.values()):.1f} CPU seconds of one core, median of {len(seconds)} kinds; in "
        f"{seconds[slowest]:.1f} at most (`{slowest}`). `python benchmarks/architecture_times.py` measures it."
    )


def _layers(told: dict[str, Any]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(told["layers"]).items())


def _special(told: dict[str, Any]) -> str:
    attends = {"full", "sliding", "chunked"}
    kinds = [how for kind, how in zip(told["layers"], told["rotations"], strict=True) if kind in attends]
    both = told["states"] and "state" not in told["layers"]
    said = {
        "soft-cap": told["softcap"],
        "sinks": told["sinks"],
        "no RoPE in some layers": "none" in kinds,
        "RoPE that cannot be undone": "unknown" in kinds,
        "attention beside a state": both,
        "layers that read an earlier one's keys and values": "reading" in told["layers"],
        "values of other channels than keys": any(key != value for key, value in told["heads"]),
        "heads of several sizes": len(told["heads"]) > 1,
        "prompt in one pass": not told["chunks"],
    }
    return ", ".join(what for what, whether in said.items() if whether) or "-"
