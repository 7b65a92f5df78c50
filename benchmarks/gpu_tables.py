"""The stored GPU results as tables: decode steps as rows that are printed as they come, the other operations by model,
and the project's targets at the end."""

from pathlib import Path
from typing import Any

from gpu_results import Results
from gpu_verdicts import fastest_fp16, methods, ratio, verdicts

Numbers = dict[str, Any]
DECODE = (
    "case",
    "cache",
    "MB",
    "ms, quartiles",
    "a read of as many bytes, ms",
    "of that read (rounds)",
    "fastest fp16",
    "its ms",
    "times as fast (rounds)",
)
STEPS = ("decode", "eager", "layers")
NOTES = {
    "quantize_pack": "torch: the plain-torch reference on the same GPU; copy: of the fp16 tensor.",
    "unpack_dequantize": "torch: the plain-torch reference on the same GPU; copy: of the fp16 tensor.",
    "packed_scores": "Asymmetric groups of 32 where nothing else is said, the same bytes either way (InnerQ, Table 4).",
    "packed_values": "Asymmetric groups of 32 where nothing else is said, the same bytes either way (InnerQ, Table 4).",
    "squat_quantize": "quantize_pack rounds alike without updating later channels.",
    "codebook_scores": "decode_first: back to numbers with torch, then matmul (CommVQ, Table 5).",
    "launch": "Stages (s) and the most registers (r) of the decode kernel.",
    "generate": "Wall clock of steps launched by Python (eager) and from a CUDA graph; random weights of Llama-3.1-8B's"
    " shape, 32,768 tokens; fp16 by the fastest of torch's attentions.",
    "batch": "Wall clock, likewise; random weights of Llama-2-7B's shape (SQuat, Figure 3).",
}


def head() -> str:
    return f"| {' | '.join(DECODE)} |\n{'|---' * len(DECODE)}|"


def step_rows(case: str, numbers: Numbers) -> list[str]:
    """A decode case: one row for each packed cache, beside the fastest fp16 attention, by name."""
    best, rows = fastest_fp16(numbers), []
    for name in methods(numbers):
        ours, read = numbers[name], numbers[f"{name}_read"]
        cells = [case, name, f"{numbers[f'{name}_bytes'] / 1e6:.1f}", _quartiles(ours), f"{read['ms']:.4f}"]
        cells += [str(ratio(read, ours))]
        cells += [best[0], f"{best[1]['ms']:.4f}", str(ratio(best[1], ours))] if best else ["none ran", "", ""]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def tables(file: Path) -> str:
    """All that is stored of one device and one state of the kernels, as Markdown."""
    results = Results(file)
    if not results.facts:
        return f"Nothing is stored in {file}."
    facts = results.facts
    made = [
        f"{facts['device']}, torch {facts['torch']}, triton {facts['triton']}, kernels {facts['kernels']}, copy "
        f"bandwidth {facts['copy_bandwidth'] / 1e9:.0f} GB/s. Milliseconds: medians, and quartiles in brackets; "
        "ratios with the rounds that lie furthest apart."
    ]
    if facts["device"] == "cpu":
        made.insert(0, "DRY RUN on a CPU with tiny shapes: these are no measurements.")
    steps = {case: numbers for case, numbers in results.cases.items() if case.split("/")[0] in STEPS}
    if steps:
        made.append("\n".join([head(), *(row for case, numbers in steps.items() for row in step_rows(case, numbers))]))
        made.append("\n".join(["Every fp16 attention that ran:", *(_baselines(*step) for step in steps.items())]))
    made += _others({case: numbers for case, numbers in results.cases.items() if case not in steps})
    told = [] if facts["device"] == "cpu" else verdicts(facts["device"], results.cases)
    if told:
        made.append("**Targets**\n\n" + "\n".join(told))
    return "\n\n".join(made)


def _quartiles(timing: Numbers) -> str:
    return f"{timing['ms']:.4f} ({timing['q1']:.4f} to {timing['q3']:.4f})"


def _baselines(case: str, numbers: Numbers) -> str:
    ran = {name: each["ms"] for name, each in numbers.items() if name.startswith("fp16_") and isinstance(each, dict)}
    return f"- {case}: " + ", ".join(f"{name} {ms:.4f}" for name, ms in sorted(ran.items(), key=lambda each: each[1]))


def _others(cases: dict[str, Numbers]) -> list[str]:
    """Cases named operation/model/size: a table for each operation and model, sizes across."""
    found: dict[tuple[str, str], dict[str, Numbers]] = {}
    for case, numbers in cases.items():
        part, model, size = case.split("/")
        found.setdefault((part, model), {})[size] = numbers
    return [_other(*names, rows) for names, rows in found.items()]


def _other(part: str, model: str, sizes: dict[str, Numbers]) -> str:
    sizes = dict(sorted(sizes.items(), key=lambda each: int(each[0])))
    names = list(dict.fromkeys(name for numbers in sizes.values() for name in numbers))
    lines = [f"**{model}: {part}**", "", f"| | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for name in names:
        cells = (_cell(numbers.get(name)) for numbers in sizes.values())
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOTES[part]] if part in NOTES else lines)


def _cell(number: Any) -> str:
    if number is None:
        return "-"
    return _quartiles(number) if isinstance(number, dict) else f"{number:.4f}"
