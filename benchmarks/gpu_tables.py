"""The stored GPU results as tables in the form of the papers', and the project's targets beside them."""

import json
from pathlib import Path

Results = dict[str, dict[str, dict[int, dict[str, float]]]]  # part -> model or kind -> tokens or batch -> numbers


def tables(folder: Path) -> str:
    """All tables of one device as Markdown; what has not been measured is missing from them."""
    facts, results = _read(folder)
    if not facts:
        return f"Nothing is stored in {folder}."
    head = [f"{facts['device']}, torch {facts['torch']}, triton {facts['triton']}, "
            f"copy bandwidth {facts['copy_bandwidth'] / 1e9:.0f} GB/s. Milliseconds, medians."]  # fmt: skip
    if facts["device"] == "cpu":
        head = ["DRY RUN on a CPU with tiny shapes: these are no measurements.", *head]
    parts = [*_products(results), *_plain(results), *_batches(results)]
    return "\n\n".join([*head, *parts, *_targets(results)])


def _read(folder: Path) -> tuple[dict[str, object], Results]:
    results: Results = {}
    facts: dict[str, object] = {}
    for file in sorted(folder.glob("*.json")):
        numbers = json.loads(file.read_text())
        if file.stem == "machine":
            facts = numbers
            continue
        part, name, size = file.stem.split("--")
        results.setdefault(part, {}).setdefault(name, {})[int(size)] = numbers
    return facts, {
        part: {m: dict(sorted(rows.items())) for m, rows in found.items()} for part, found in results.items()
    }


def _table(title: str, first: str, columns: list[int], rows: list[tuple[str, list[str]]]) -> str:
    lines = [
        f"**{title}**",
        "",
        f"| {first} | " + " | ".join(map(str, columns)) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    return "\n".join(lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows])


def _row(found: dict[int, dict[str, float]], name: str) -> list[str]:
    return [f"{numbers[name]:.4f}" if name in numbers else "-" for numbers in found.values()]


def _speedup(found: dict[int, dict[str, float]], slow: str, fast: str) -> list[str]:
    """The papers' speedup: the share of the slow one's time that is saved."""
    return [f"{1 - n[fast] / n[slow]:.1%}" for n in found.values()]


def _products(results: Results) -> list[str]:
    """InnerQ's Tables 3 and 4, for keys and for values."""
    made = []
    for model, found in results.get("products", {}).items():
        for kind in ("key", "value"):
            inner, outer, whole = f"{kind}_inner", f"{kind}_outer", f"{kind}_matmul"
            rows = [
                ("torch.matmul fp16", _row(found, whole)), ("inner grouping", _row(found, inner)),
                ("speedup over matmul (Table 3)", _speedup(found, whole, inner)),
                ("outer grouping", _row(found, outer)),
                ("speedup of inner over outer (Table 4)", _speedup(found, outer, inner)),
                ("roofline", _row(found, "inner_roofline")),
            ]  # fmt: skip
            if kind == "key":
                rows.append(("inner, dequantized first", _row(found, "key_inner_dequantize_matmul")))
            made.append(_table(f"{model}: {kind}s times a vector, 2 bits", "tokens", list(found), rows))
    return made


def _plain(results: Results) -> list[str]:
    """Parts whose rows are simply their numbers: quantization (Figure 4), decode attention, Table 5, the others."""
    titles = {
        "quantize": "quantize and pack (InnerQ, Figure 4)", "decode": "decode attention, one layer, batch 1",
        "codebook": "CommVQ scores, one layer (Table 5)", "latent": "SVDq scores, one layer",
        "mixed": "QAQ scores, one layer", "launch": "launch settings of decode attention",
    }  # fmt: skip
    made = []
    for part, title in titles.items():
        for model, found in results.get(part, {}).items():
            names = list(dict.fromkeys(name for numbers in found.values() for name in numbers))
            made.append(_table(f"{model}: {title}", "tokens", list(found), [(n, _row(found, n)) for n in names]))
    return made


def _batches(results: Results) -> list[str]:
    """SQuat's Figure 3: peak memory, latency and throughput against the batch."""
    found = results.get("batch", {})
    columns = sorted({size for rows in found.values() for size in rows})
    made = []
    for name, title in (
        ("peak_gb", "peak memory, GB"),
        ("ms_per_token", "ms a step"),
        ("tokens_per_second", "tokens/s"),
    ):
        rows = [(kind, [_cell(numbers.get(size), name) for size in columns]) for kind, numbers in found.items()]
        if rows:
            made.append(_table(f"Llama-2-7B shape, random weights: {title} (SQuat, Figure 3)", "batch", columns, rows))
    return made


def _cell(numbers: dict[str, float] | None, name: str) -> str:
    if numbers is None:
        return "-"
    return "out of memory" if "out_of_memory" in numbers else f"{numbers[name]:.2f}"


def _targets(results: Results) -> list[str]:
    """The project's targets, each with what was measured for it."""
    lines = []
    for model, found in results.get("decode", {}).items():
        for n, numbers in found.items():
            if n >= 32768:
                share = {kind: numbers[f"{kind}_roofline"] / numbers[kind] for kind in ("kivi", "innerq")}
                lines.append(
                    f"- {model}, {n} tokens: decode attention at {_shares(share)} of the bandwidth (target 80 %)"
                )
            if n == 65536:
                gain = {kind: numbers["sdpa"] / numbers[kind] for kind in ("kivi", "innerq")}
                lines.append(f"- {model}, {n} tokens: {_times(gain)} faster than fp16 SDPA (target 4x)")
    for model, found in results.get("quantize", {}).items():
        n = max(found)
        share = {a: found[n][f"hybrid_{a}_roofline"] / found[n][f"hybrid_{a}"] for a in ("channels", "tokens")}
        extra = {a: found[n][f"hybrid_{a}"] / found[n][f"symmetric_{a}"] - 1 for a in ("channels", "tokens")}
        lines.append(f"- {model}, {n} tokens: quantize and pack at {_shares(share)} of the bandwidth (target 70 %)")
        lines.append(f"- {model}, {n} tokens: hybrid slower than symmetric by {_shares(extra)} (target 3 %)")
    return ["**Targets**\n\n" + "\n".join(lines)] if lines else []


def _shares(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0%}" for name, value in values.items())


def _times(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}x" for name, value in values.items())
