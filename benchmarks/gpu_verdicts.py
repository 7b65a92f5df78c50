"""The project's targets beside what was measured, with error bars: a target is held where the whole bar is beyond it,
missed where the whole bar falls short, and otherwise open. A bar spans the medians of all rounds of both numbers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

Numbers = dict[str, Any]
LARGE = 100e6  # bytes: smaller caches are read in less time than two launches take
READ = {"H200": 0.65}  # of a read of the same size; 80 % elsewhere
GAIN = {"H200": 3.5}  # times the fastest fp16 attention, at 64K tokens and more; 4 elsewhere
INNERQ_GAIN = 2.5
GENERATED = {1: 1.0, 8: 1.3}  # tokens a second of an 8B shape at 32K, times fp16's, by the batch
QUANTIZED = 0.7  # of a copy's bandwidth


class Ratio(NamedTuple):
    """How many times one time goes into another: between the medians, and between the rounds furthest apart."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(of: Numbers, over: Numbers) -> Ratio:
    slow, fast = of["rounds"], over["rounds"]
    return Ratio(of["ms"] / over["ms"], min(slow) / max(fast), max(slow) / min(fast))


def fastest_fp16(numbers: Numbers) -> tuple[str, Numbers] | None:
    """The best of the baselines that ran, by name."""
    found = {
        name: timing
        for name, timing in numbers.items()
        if name.startswith("fp16_") and name != "fp16_read" and isinstance(timing, dict)
    }
    return min(found.items(), key=lambda each: each[1]["ms"]) if found else None


def fastest_step(numbers: Numbers) -> Numbers:
    """Of a whole model: from a graph, or launched by Python."""
    return min((numbers[how] for how in ("eager", "graph") if how in numbers), key=lambda each: each["ms"])


def methods(numbers: Numbers) -> list[str]:
    """The packed caches of a decode case that ran."""
    return [name.removesuffix("_read") for name in numbers if name.endswith("_read") and name[:-5] in numbers]


def verdicts(device: str, cases: dict[str, Numbers]) -> list[str]:
    """A line for each target that a stored case says something of."""
    found = []
    for case, numbers in cases.items():
        part = case.split("/")[0]
        if part in ("decode", "layers"):
            found += _decode(device, case, numbers)
        if part == "quantize_pack":
            found += _quantize(case, numbers)
        if part == "generate":
            found += _generate(case, numbers, cases)
    return found


def _decode(device: str, case: str, numbers: Numbers) -> Iterator[str]:
    tokens, best = int(case.split("/")[-1]), fastest_fp16(numbers)
    for name in methods(numbers):
        ours = numbers[name]
        if name == "kivi-2" and numbers[f"{name}_bytes"] >= LARGE:
            least = _of(READ, device, 0.8)
            yield _line(ratio(numbers[f"{name}_read"], ours), least, f"{case}, {name}: of a read of as many bytes")
        least = {"kivi-2": _of(GAIN, device, 4.0), "innerq-hybrid-2": INNERQ_GAIN}.get(name)
        if best and least and tokens >= 65536:
            yield _line(ratio(best[1], ours), least, f"{case}, {name}: times as fast as {best[0]}, the fastest in fp16")


def _generate(case: str, numbers: Numbers, cases: dict[str, Numbers]) -> Iterator[str]:
    part, kind, batch = case.split("/")
    plain = cases.get(f"{part}/fp16/{batch}", {})
    if kind == "kivi" and "eager" in numbers and "eager" in plain:
        yield _line(
            ratio(fastest_step(plain), fastest_step(numbers)),
            GENERATED[int(batch)],
            f"{case}: tokens a second, times fp16",
        )


def _quantize(case: str, numbers: Numbers) -> Iterator[str]:
    for name, timing in numbers.items():
        if f"{name}_roofline" in numbers:
            line = numbers[f"{name}_roofline"]
            yield _line(
                Ratio(line / timing["ms"], line / max(timing["rounds"]), line / min(timing["rounds"])),
                QUANTIZED,
                f"{case}, {name}: of a copy's bandwidth",
            )


def _of(targets: dict[str, float], device: str, otherwise: float) -> float:
    return next((value for name, value in targets.items() if name in device), otherwise)


def _line(found: Ratio, least: float, what: str) -> str:
    word = "held" if found.low >= least else "missed" if found.high < least else "open"
    return f"- {word}: {what}: {found}, at least {least:g}"
