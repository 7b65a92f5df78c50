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
    return "\n\n".join([*_published(), *filter(None, [_times()]), ran, "Refused:", why])


def _published() -> list[str]:
    """Models with windows as they are published, of what benchmarks/windowed.py wrote."""
    parts = []
    for told in (figures("windowed") or {}).values():
        rows = [
            (
                label,
                f"{of['kld']:.2g}",
                f"{of['ratio']:.3g}",
                "-" if of["whole_ratio"] is None else f"{of['whole_ratio']:.3g}",
            )
            for label, of in told["lanes"].items()
        ]
        tokens, whole = ("the same" if told["same_tokens"] else "others"), told["tokens"] + told["later"]
        parts.append(
            f"{told['model']} ({told['windowed']} layers with windows of {told['window']} tokens, {told['full']} with "
            f"all), `python benchmarks/windowed.py`: a text of {whole} tokens reads as {tokens} in llama.cpp "
            f"({told['package']}), whose log probabilities on these weights in float32 differ by {told['logprob']:.1g} "
            f"at most, up to {told['tokens']} tokens. One text of {told['later']} scored tokens:"
        )
        parts.append(table("Lane | KLD | Bytes over fp16, what it quantizes | The whole cache", *rows))
    return parts


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
