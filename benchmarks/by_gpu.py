"""The parts of docs/costs.md and docs/gpu.md, and the page's file, that benchmarks/gpu-results gives: what GPUs took.

Of each device one file is told: of the present kernels before others, and then the one with most cases.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.by_kernel import NAMES, span
from benchmarks.by_tuning import profiled, since, tuned
from benchmarks.latency import judge_device, latency_json
from benchmarks.measured import HERE, table
from kvq_core.claims.latency import FILE as LATENCY
from kvq_core.claims.latency import DeviceBoard, stored_latency
from kvq_core.claims.tables import latency_table
from kvq_core.packed.gpus import SHIPPED, DecodeSpeed, MeasuredGpu

sys.path.append(str(HERE))  # the benchmark's modules name one another so, because it runs without this project
try:
    from gpu import WHOLE
    from gpu_results import Results
    from gpu_tables import STEPS, head, step_rows
    from gpu_verdicts import ratio, verdicts
finally:
    sys.path.remove(str(HERE))

Numbers = dict[str, Any]
RESULTS = HERE / "gpu-results"
NOTHING = "Not measured yet: `make bench-gpu`."
GENERATE = next(whole for whole in WHOLE if whole.part == "generate")
KINDS = {"fp16": "fp16", "kivi": NAMES["kivi-2"], "innerq": NAMES["innerq-hybrid-2"]}
HOW = {"decode": "", "layers": ", all layers", "eager": ", launched by Python"}
WORDS = ("held", "open", "missed")
VERDICT = re.compile(
    r"- (?P<word>\w+): (?P<case>[^:]+): (?P<what>[^:]+): (?P<value>[\d.]+) \(.+\), at least (?P<least>[\d.]+)"
)
MODEL = "Llama-3.1-8B"  # whose shape GENERATE has
HEAD_SUMMARY = "GPU | Cache | Batch | Tokens a second | Times fp16 | Peak, GB"
HEAD_GENERATE = (
    "Cache | Batch | ms a token, quartiles | Tokens a second | Times fp16 (rounds) | Peak, GB | "
    "ms a token launched by Python, quartiles"
)
HEAD_VERDICTS = "Target | At least | Held | Open | Missed"


def newest(folder: Path = RESULTS) -> list[Results]:
    """One file of each device, by the device's name."""
    found = (Results(file) for file in sorted(folder.glob("*.jsonl")))
    ranked = sorted((each for each in found if each.cases and each.facts["device"] != "cpu"), key=_rank)
    best = {each.facts["device"]: each for each in ranked}
    return [best[device] for device in sorted(best)]


def _rank(found: Results) -> tuple[bool, int, str]:
    return not _changed(found), len(found.cases), found.file.name


def _changed(found: Results) -> bool:
    return bool(since(found.facts["kernels"]))


def gpu_part(folder: Path = RESULTS) -> str:
    """All that docs/gpu.md tells of each device."""
    return "\n\n".join(text for found in newest(folder) for text in _device(found)) or NOTHING


def gpu_summary_part(folder: Path = RESULTS) -> str:
    """For docs/costs.md: whole models, and how many targets are held and missed."""
    if not (told := shipped(folder)):
        return NOTHING
    rows = [(device.device, *_summary(row)) for device in told for row in device.rows]
    return "\n\n".join(
        [
            table(HEAD_SUMMARY, *rows),
            *(f"*Measured on {each.device}*, {each.versions}. {each.summary}" for each in told),
        ]
    )


def _summary(row: DecodeSpeed) -> list[str]:
    times = "-" if row.times is None else f"{row.times:.2f}"
    return [row.cache, str(row.batch), f"{row.tokens_per_second:.0f}", times, f"{row.peak_gb:.1f}"]


def shipped(folder: Path = RESULTS) -> list[MeasuredGpu]:
    """What the page tells where there is no GPU."""
    return [_measured(found) for found in newest(folder)]


def ship(folder: Path = RESULTS, file: Path = SHIPPED, latency_file: Path = LATENCY) -> None:
    """Write the page's files: what decoding took, and what it says of the papers' claims about time."""
    file.write_text(as_json(shipped(folder)), encoding="utf-8")
    latency_file.write_text(latency_json(judged(folder)), encoding="utf-8")


def latency_part(folder: Path = RESULTS) -> str:
    """For docs/claims.md: the papers' claims about time, and what contradicts a paper."""
    said = [words for each in stored_latency().said.values() for words in each]
    return "\n\n".join([*said, latency_table(judged(folder))])


def judged(folder: Path = RESULTS) -> tuple[DeviceBoard, ...]:
    """The papers' claims about time, by device."""
    return tuple(judge_device(found.facts, _changed(found), found.cases) for found in newest(folder))


def as_json(told: list[MeasuredGpu]) -> str:
    kept = [device._asdict() | {"rows": [row._asdict() for row in device.rows]} for device in told]
    return json.dumps(kept, indent=1) + "\n"


def _measured(found: Results) -> MeasuredGpu:
    facts, counts = found.facts, _counts(found)
    rows = tuple(
        DecodeSpeed(cache, batch, round(1e3 * batch / graph["ms"], 4), times and round(times.value, 4), round(peak, 4))
        for cache, batch, graph, _, times, peak in _generated(found)
    )
    return MeasuredGpu(
        facts["device"],
        facts["torch"],
        facts["triton"],
        facts["kernels"][:8],
        _changed(found),
        MODEL,
        GENERATE.prompt,
        *(counts[word] for word in WORDS),
        rows,
    )


def _device(found: Results) -> Iterator[str]:
    """What was measured on one device, with what and of which kernels."""
    facts = found.facts
    yield f"### {facts['device']}"
    yield (
        f"*Measured* with torch {facts['torch']} and Triton {facts['triton']}, of the kernels {facts['kernels'][:8]}."
        f"{since(facts['kernels'])} A copy of a large tensor reaches {facts['copy_bandwidth'] / 1e9:,.0f} GB/s. "
        "Times are medians in milliseconds with quartiles in brackets; beside a ratio stand those of the rounds "
        "furthest apart."
    )
    yield from _verdicts(found)
    yield from _decode(found)
    yield from _generate(found)
    yield from _quantize(found)
    yield from tuned(found.file.parent, facts["device"])
    yield from profiled(found.file.parent, facts["device"])


def _verdicts(found: Results) -> Iterator[str]:
    """The targets, alike ones in one row."""
    if not (told := _told_verdicts(found)):
        return
    targets: dict[tuple[str, str], dict[str, list[float]]] = {}
    for each in told:
        by = targets.setdefault((_target(each), each["least"]), {word: [] for word in WORDS})
        by[each["word"]].append(float(each["value"]))
    counts = ", ".join(f"{count} {word}" for word, count in _counts(found).items())
    yield (
        f"The project's targets, by how many cases hold or miss them ({counts}), and the numbers of these. "
        "`make bench-gpu BENCH_ARGS=--tables` prints them one by one."
    )
    rows = [
        [*target, *(f"{len(values)}: {span(values, 2)}" if values else "-" for values in by.values())]
        for target, by in targets.items()
    ]
    yield table(HEAD_VERDICTS, *rows)


def _told_verdicts(found: Results) -> list[dict[str, str]]:
    """The lines of the benchmark, taken apart. Raises ValueError for one of another form."""
    made = []
    for line in verdicts(found.facts["device"], found.cases):
        if not (parts := VERDICT.fullmatch(line)):
            raise ValueError(f"not a verdict as by_gpu.py knows them: {line}")
        made.append(parts.groupdict())
    return made


def _counts(found: Results) -> dict[str, int]:
    told = [each["word"] for each in _told_verdicts(found)]
    return {word: told.count(word) for word in WORDS}


def _target(verdict: dict[str, str]) -> str:
    """What it is of, with neither the case's size nor the name of the fastest fp16 attention there."""
    (part, *rest), name = verdict["case"].split(",")[0].split("/"), verdict["case"].partition(", ")[2]
    what = re.sub(r"fp16_\w+, the fastest in fp16", "the fastest fp16 attention", verdict["what"])
    if part == "generate":
        return f"A whole model, {KINDS[rest[0]]}, batch {rest[1]}: {what}"
    return f"`quantize_pack`: {what}" if part == "quantize_pack" else f"Reading, {NAMES[name]}: {what}"


def _decode(found: Results) -> Iterator[str]:
    """A row of the benchmark for each cache of each case."""
    rows = [
        " | ".join(_word(cell) for cell in row.split(" | "))
        for case, numbers in found.cases.items()
        if case.split("/")[0] in STEPS
        for row in step_rows(_case(case), numbers)
    ]
    if rows:
        yield "A step's attention over a packed cache, beside a read of as many bytes and the fastest fp16 attention:"
        yield "\n".join([head(), *rows])


def _case(case: str) -> str:
    """``decode/model/b8/tokens`` in words."""
    part, model, batch, tokens = case.split("/")
    return f"{model}, batch {batch[1:]}, {int(tokens):,} tokens{HOW[part]}"


def _word(cell: str) -> str:
    return NAMES.get(cell, cell.removeprefix("fp16_"))


def _generate(found: Results) -> Iterator[str]:
    """Whole models: what a user waits for."""
    rows = [
        [
            cache,
            str(batch),
            _quartiles(graph),
            f"{1e3 * batch / graph['ms']:.0f}",
            str(times or "-"),
            f"{peak:.1f}",
            _quartiles(eager),
        ]
        for cache, batch, graph, eager, times, peak in _generated(found)
    ]
    if rows:
        yield (
            f"A whole model with random weights of {MODEL}'s shape, {GENERATE.prompt:,} tokens in its cache and "
            f"{GENERATE.new} new ones, steps played from a CUDA graph, in fp16 by the fastest of torch's attentions:"
        )
        yield table(HEAD_GENERATE, *rows)


def _quartiles(timing: Numbers) -> str:
    return f"{timing['ms']:.2f} ({timing['q1']:.2f} to {timing['q3']:.2f})"


def _generated(found: Results) -> Iterator[tuple[str, int, Numbers, Numbers, Any, float]]:
    """Cache, batch, steps from a graph and launched by Python, times fp16 and peak GB of what fitted, by batch."""
    cases = {case: numbers for case, numbers in found.cases.items() if "graph" in numbers}
    for batch in GENERATE.batches:
        plain = cases.get(f"generate/fp16/{batch}")
        for kind in GENERATE.kinds:
            if numbers := cases.get(f"generate/{kind}/{batch}"):
                graph = numbers["graph"]
                times = ratio(plain["graph"], graph) if plain and kind != "fp16" else None
                yield KINDS[kind], batch, graph, numbers["eager"], times, numbers["peak_gb"]


def _quantize(found: Results) -> Iterator[str]:
    """Packing a prompt: by model and groups, sizes across."""
    cases = {
        tuple(case.split("/")[1:]): numbers
        for case, numbers in found.cases.items()
        if case.split("/")[0] == "quantize_pack"
    }
    sizes = sorted({int(size) for _, size in cases})
    shares: dict[tuple[str, str], dict[int, str]] = {}
    for (model, size), numbers in cases.items():
        for name in numbers:
            if f"{name}_roofline" in numbers:
                share = numbers[f"{name}_roofline"] / numbers[name]["ms"]
                shares.setdefault((model, name.replace("_", ", along ")), {})[int(size)] = f"{share:.2f}"
    if shares:
        yield (
            "`quantize_pack`, 2 bits, groups of 32, keys or values of one layer's prompt: the share of a copy's "
            "bandwidth at which what must be read and written goes, launch included:"
        )
        head = " | ".join(["Model", "Groups", *(f"{size:,} tokens" for size in sizes)])
        yield table(head, *([*names, *(by.get(size, "-") for size in sizes)] for names, by in shares.items()))
