"""The stored GPU results as tables in the form of the papers', and the project's targets beside them."""

import json
from collections.abc import Iterator
from pathlib import Path

# Parts whose rows are simply their numbers: a title, and why a comparison that others have is missing.
ONE_PRODUCT = "decode_first: back to numbers with torch, then matmul. No SDPA: this is one of its two products."
NO_PRODUCT = (
    "torch: the plain-torch reference on the same GPU; copy: of the fp16 tensor. No SDPA and no matmul: nothing is "
    "multiplied."
)
PLAIN = {
    "quantize_pack": ("quantize_pack (InnerQ, Figure 4)", NO_PRODUCT),
    "unpack_dequantize": ("unpack_dequantize, to fp16", NO_PRODUCT),
    "decode_attention": (
        "decode_attention, one layer, batch 1",
        "sdpa: the kernel torch chooses; flash: its flash decoding; matmul: both products and the softmax.",
    ),
    "graph": (
        "decode_attention replayed from a CUDA graph",
        "What waits between the launches of one call costs nothing here; all other comparisons are in the table above.",
    ),
    "squat_quantize": (
        "squat_quantize, one layer",
        f"{NO_PRODUCT} quantize_pack rounds alike without updating later channels.",
    ),
    "codebook_scores": ("codebook_scores, one layer (CommVQ, Table 5)", ONE_PRODUCT),
    "codebook_values": ("codebook_values, one layer", ONE_PRODUCT),
    "latent_scores": ("latent_scores (SVDq), one layer", ONE_PRODUCT),
    "mixed_scores": ("mixed_scores (QAQ), one layer", ONE_PRODUCT),
    "mixed_values": ("mixed_values (QAQ), one layer", ONE_PRODUCT),
    "launch": (
        "launch settings of decode_attention",
        "Tokens a tile (t), warps (w) and stages (s) of one kernel; its comparisons are in the table above.",
    ),
}
DECODER = (
    "fp16 is read by SDPA, and so is kivi dequantized, its packed cache dequantized at every step. No matmul: a step "
    "has many."
)

Results = dict[str, dict[str, dict[int, dict[str, float]]]]  # part -> model or kind -> tokens or batch -> numbers


def tables(folder: Path) -> str:
    """All tables of one device as Markdown; what has not been measured is missing from them."""
    facts, results = _read(folder)
    if not facts:
        return f"Nothing is stored in {folder}."
    head = [
        f"{facts['device']}, torch {facts['torch']}, triton {facts['triton']}, "
        f"copy bandwidth {facts['copy_bandwidth'] / 1e9:.0f} GB/s. Milliseconds, medians. "
        "A dash: not measured, or it had no kernel or not enough memory."
    ]
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


def _table(title: str, first: str, columns: list[int], rows: list[tuple[str, list[str]]], note: str = "") -> str:
    lines = [
        f"**{title}**",
        "",
        f"| {first} | " + " | ".join(map(str, columns)) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]
    return "\n".join([*lines, "", note] if note else lines)


def _row(found: dict[int, dict[str, float]], name: str) -> list[str]:
    return [f"{numbers[name]:.4f}" if name in numbers else "-" for numbers in found.values()]


def _speedup(found: dict[int, dict[str, float]], slow: str, fast: str) -> list[str]:
    """The papers' speedup: the share of the slow one's time that is saved."""
    return [f"{1 - n[fast] / n[slow]:.1%}" for n in found.values()]


def _products(results: Results) -> list[str]:
    """InnerQ's Tables 3 and 4, for keys and for values."""
    made = []
    for part in ("packed_scores", "packed_values"):
        for model, found in results.get(part, {}).items():
            rows = [
                ("torch.matmul fp16", _row(found, "matmul")),
                ("inner grouping", _row(found, "inner")),
                ("speedup over matmul (Table 3)", _speedup(found, "matmul", "inner")),
                ("inner grouping, symmetric (InnerQ)", _row(found, "inner_symmetric")),
                ("inner grouping, hybrid (InnerQ)", _row(found, "inner_hybrid")),
                ("outer grouping", _row(found, "outer")),
                ("speedup of inner over outer (Table 4)", _speedup(found, "outer", "inner")),
                ("inner, dequantized first", _row(found, "inner_dequantize_matmul")),
                ("outer, dequantized first", _row(found, "outer_dequantize_matmul")),
                ("roofline of 2 bits", _row(found, "inner_roofline")),
                ("roofline of 2 bits, symmetric", _row(found, "inner_symmetric_roofline")),
                ("roofline of 2 bits, hybrid", _row(found, "inner_hybrid_roofline")),
                ("roofline of fp16", _row(found, "matmul_roofline")),
            ]
            note = (
                "Asymmetric groups of 32 where nothing else is said, the same bytes either way, and all codes stay in "
                "their words. No SDPA: this is one of its two products; decode_attention stands beside it."
            )
            made.append(_table(f"{model}: {part}, 2 bits", "tokens", list(found), rows, note))
    return made


def _plain(results: Results) -> list[str]:
    made = []
    for part, (title, note) in PLAIN.items():
        for model, found in results.get(part, {}).items():
            names = list(dict.fromkeys(name for numbers in found.values() for name in numbers))
            rows = [(name.replace("_", " "), _row(found, name)) for name in names]
            made.append(_table(f"{model}: {title}", "tokens", list(found), rows, note))
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
        ("roofline", "ms to read weights and cache once"),
    ):
        rows = [
            (kind.replace("_", " "), [_cell(numbers.get(size), name) for size in columns])
            for kind, numbers in found.items()
        ]
        if rows:
            head = f"Llama-2-7B shape, random weights: {title} (SQuat, Figure 3)"
            made.append(_table(head, "batch", columns, rows, DECODER))
    return made


def _cell(numbers: dict[str, float] | None, name: str) -> str:
    if numbers is None:
        return "-"
    return "out of memory" if "out_of_memory" in numbers else f"{numbers[name]:.2f}"


def _targets(results: Results) -> list[str]:
    """The project's targets: what was measured for each, and whether it holds."""
    lines = [*_decode_targets(results), *_grouping_targets(results), *_quantize_targets(results)]
    return ["**Targets**\n\n" + "\n".join(lines)] if lines else []


def _decode_targets(results: Results) -> Iterator[str]:
    steps = (("decode_attention", "decode_attention"), ("graph", "decode_attention from a graph"))
    every = (
        (name, model, n, found)
        for part, name in steps
        for model, rows in results.get(part, {}).items()
        for n, found in rows.items()
    )
    for name, model, n, numbers in every:
        for kind in ("kivi", "innerq"):
            where = f"{model}, {n} tokens, {kind}"
            if n >= 32768:
                share = numbers[f"{kind}_roofline"] / numbers[kind]
                yield _target(share >= 0.8, f"{where}: {name} at {share:.0%} of the bandwidth", "80 %")
            if n == 65536:
                gain = numbers["sdpa"] / numbers[kind]
                yield _target(gain >= 4, f"{where}: {name} {gain:.1f} times as fast as fp16 SDPA", "4")


def _grouping_targets(results: Results) -> Iterator[str]:
    for part in ("packed_scores", "packed_values"):
        for model, found in results.get(part, {}).items():
            n, numbers = max(found.items())
            saved = 1 - numbers["inner"] / numbers["outer"]
            yield _target(
                saved >= 0.2, f"{model}, {n} tokens: {part} takes {saved:.0%} less time grouped inner", "20 %"
            )


def _quantize_targets(results: Results) -> Iterator[str]:
    for model, found in results.get("quantize_pack", {}).items():
        n, numbers = max(found.items())
        for axis in ("channels", "tokens"):
            hybrid, symmetric = (numbers[f"{mode}_{axis}"] for mode in ("hybrid", "symmetric"))
            share, extra = numbers[f"hybrid_{axis}_roofline"] / hybrid, hybrid / symmetric - 1
            where = f"{model}, {n} tokens, groups of {axis}"
            yield _target(share >= 0.7, f"{where}: quantize_pack at {share:.0%} of the bandwidth", "70 %")
            yield _target(extra <= 0.03, f"{where}: hybrid slower than symmetric by {extra:.0%}", "at most 3 %")


def _target(holds: bool, measured: str, target: str) -> str:
    return f"- {'held' if holds else 'missed'}: {measured} (target: {target})"
