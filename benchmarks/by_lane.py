"""For the documents: what lanes cost beside one another, and what reading the prompt through their caches adds."""

from collections.abc import Iterator
from typing import Any

from benchmarks.by_model import short_title
from benchmarks.measured import figures, table


def lane_costs() -> Iterator[tuple[str, ...]]:
    """Rows of the costs' table: the ratios that people ask for first."""
    for found in (figures("many_lanes") or {}).values():
        for what, measured, target in list(_ratios(found))[:2]:
            yield f"{what}; CPU time of one thread, on a busy machine", measured, target


def lanes_part() -> str:
    """All of them, a table a model."""
    parts = []
    for found in (figures("many_lanes") or {}).values():
        rows = [*_ratios(found), *_memory(found)]
        prompt = f"{found['model']}, {found['prompt_tokens']:,} prompt tokens"
        about = f"{prompt}. Ratios: {found['measured']}, on a busy machine."
        parts.append(f"{table('What | Measured | Target', *rows)}\n\n{about}")
    return "\n\n".join(parts) or "Not measured yet: `python benchmarks/many_lanes.py`."


def prefill_part() -> str:
    """How much more a cache loses once it is read during prefill."""
    parts = []
    for found in (figures("prefill") or {}).values():
        rows = [
            [
                name,
                f"{each['full']['mean']:.3f}",
                f"{each['chunked']['mean']:.3f}",
                f"{each['more']:+.0%}",
                _by_text(each),
            ]
            for name, each in found["methods"].items()
        ]
        parts.append(
            table("Method | Read in full precision | Through the cache | More | By text", *rows)
            + f"\n\n{found['model']}: mean KLD in nats over {found['later_tokens'] - 1} positions after "
            f"{found['prompt_tokens']:,} prompt tokens, chunks of {found['chunk']}; texts of the claims: "
            f"{', '.join(found['texts'])}."
        )
    return "\n\n".join(parts) or "Not measured yet: `python benchmarks/prefill.py`."


def _by_text(each: dict[str, Any]) -> str:
    return ", ".join(f"{more:+.0%}" for more in each["more_by_text"])


def _ratios(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    title, targets = short_title(found["model"]), found["targets"]
    if forced := found.get("forced"):
        yield (
            f"{title}: 8 lanes without captures and texts of their own, {forced['new_tokens']} new tokens, against one "
            "plain `generate()`",
            f"{forced['ratio']:.2f} times",
            f"{targets['forced']:g} times",
        )
    if counts := found.get("counts"):
        for count, ratio in counts["ratio"].items():
            yield (
                f"{title}: {count} lanes against 8, {counts['new_tokens']} new tokens",
                f"{ratio:.2f} times; arrays of {counts['arrays_mb'][count]:.0f} MB",
                f"{targets[count]:g} times; {found['most']['arrays_mb']} MB",
            )
    if floors := found.get("floors"):
        yield f"{title}: a second floor", f"{floors['ratio']:.2f} generates", f"{targets['floors']:g} generates"
    if deploy := found.get("deploy"):
        yield (
            f"{title}: the {deploy['lanes']} lanes of the bundle deploy, forced rows, prompt read in full precision",
            f"{deploy['ratio']['full']:.2f} generates",
            f"{targets['full']:g} generates",
        )
        yield (
            f"{title}: one of the {deploy['read_through']} that read the prompt as their engines do adds",
            f"{deploy['ratio']['deployed']:.2f} generates",
            f"{targets['deployed']:g} generates",
        )
    if prefill := found.get("prefill"):
        for own, ratio in prefill["ratio"].items():
            yield (
                f"{title}: a lane that reads the prompt in chunks of {prefill['chunk']}, its own {own}, tokens of the "
                "prompt scored",
                f"{ratio:.2f} prefills",
                f"{targets[own]:g} prefills",
            )


def _memory(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for peak in found.get("memory", {}).get("peaks", []):
        yield (
            f"Memory beside the model over its formula: {peak['prompt_tokens']:,} prompt tokens, {peak['lanes']} lanes",
            f"{peak['measured_mb'] / peak['estimated_mb']:.2f} ({peak['measured_mb']:,.0f} MB)",
            f"under {found['most']['memory']:g}",
        )
    if longest := found.get("longest"):
        tokens = longest["prompt_tokens"] + longest["new_tokens"]
        yield (
            f"Peak memory, model included: {longest['lanes']} lanes, {tokens:,} tokens",
            f"{longest['peak_gb']:.1f} GB ({longest['measured_mb'] / longest['estimated_mb']:.2f} of the formula)",
            f"{found['most']['longest_gb']} GB",
        )
