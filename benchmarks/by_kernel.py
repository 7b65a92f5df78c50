"""The parts of docs/gpu.md that benchmarks/kernels.json gives: what the kernels were compiled to, by count."""

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.gpu_verdicts import QUANTIZED
from benchmarks.measured import figures, table

Row = dict[str, Any]
NAMES = {"kivi-2": "KIVI, 2 bits", "kivi-4": "KIVI, 4 bits", "innerq-hybrid-2": "InnerQ hybrid, 2 bits"}
DERIVED = "*Derived by count, not measured*"
NEAR = 0.05  # an instruction an element: what one decimal does not tell apart
CHIPS = "A100 · H100 · H200"
HEAD = (
    "Method | head_dim | Query heads a KV head | Instructions an element, sm_80 · sm_90 | At most | Registers | "
    f"Spills | Bytes a load | Of a copy's bandwidth, %: {CHIPS} | Times fp16: {CHIPS}"
)
HEAD_OTHERS = (
    "Triton | Method | Query heads a KV head | "
    "Instructions an element at head_dim 64 · 80 · 96 · 128 | At most | Spills"
)
HEAD_QUANTIZED = (
    f"Groups | Instructions an element, sm_80 · sm_90 | Registers | Spills | Of a copy's bandwidth, %: {CHIPS}"
)
HEAD_METHODS = f"Operation | Method | Instructions an element, sm_80 · sm_90 | Times as long as fp16: {CHIPS}"


def kernels_part() -> str:
    """Reading a packed cache, by method and head_dim, forms that differ in their query heads alone in one row."""
    if not (found := figures("kernels")):
        return "Not counted yet: `make kernels-report`."
    decode = [row for row in found["forms"] if row["operation"] == "decode_attention"]
    keys = dict.fromkeys((row["method"], row["head_dim"]) for row in decode)
    made = [_decode([row for row in decode if (row["method"], row["head_dim"]) == key]) for key in keys]
    quantized = [row for row in found["forms"] if row["operation"] == "quantize_pack"]
    pairs = zip(quantized[::2], quantized[1::2], strict=True)
    told = [
        f"{DERIVED}, on {found['date']} with Triton {found['triton']}, of the kernels {found['fingerprint'][:8]}: "
        f"{found['counted']}. {_assumptions(found['assumed'])}",
        table(HEAD, *made),
        f"`quantize_pack`, 2 bits, head_dim 128; {DERIVED.lower().strip('*')}:",
        table(HEAD_QUANTIZED, *(_quantized(*pair) for pair in pairs)),
    ]
    if others := found.get("others"):
        told += [
            f"Reading with other versions of Triton, the most of sm_80 and sm_90; {DERIVED.lower().strip('*')}:",
            table(HEAD_OTHERS, *_others(others)),
        ]
    return "\n\n".join([*told, *_short(decode, quantized, found.get("others", {}))])


def _short(decode: list[Row], quantized: list[Row], others: dict[str, list[Row]]) -> Iterator[str]:
    """What takes more instructions than it may, and what the count alone keeps below the target."""
    over = [_over(rows, version) for version, rows in [("", decode), *others.items()]]
    if names := [name for each in over for name in each]:
        yield f"Over its limit, on sm_80, sm_90 or both: {'; '.join(names)}."
    chips: dict[str, list[str]] = {}
    for row in quantized:
        few = [chip for chip, share in row["share"].items() if share < QUANTIZED]
        chips.setdefault(row["method"].replace("-", ", along "), []).extend(few)
    if below := [f"{name} on {', '.join(on)}" for name, on in chips.items() if on]:
        target = f"{QUANTIZED:.0%}".replace("%", " %")
        yield f"`quantize_pack` below its target by count, {target} of a copy's bandwidth: {'; '.join(below)}."


def _over(rows: list[Row], version: str) -> Iterator[str]:
    """By method, the numbers of query heads for which heads of the same sizes are."""
    dims: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        if row["instructions"] > row["most"]:
            dims.setdefault((row["method"], row["query_heads"]), set()).add(row["head_dim"])
    heads: dict[tuple[str, str], list[int]] = {}
    for (method, shared), found in dims.items():
        heads.setdefault((method, _listed(found)), []).append(shared)
    for (method, sizes), shared in heads.items():
        where = f"{NAMES[method]}, with {_listed(shared)} query heads a KV head at head_dim {sizes}"
        yield where + (f" (Triton {version})" if version else "")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def slow_part() -> str:
    """The methods that do not pay, and the count that says so."""
    if not (found := figures("kernels")):
        return "Not counted yet: `make kernels-report`."
    rows = [row for row in found["forms"] if row["operation"].split("_")[0] in ("latent", "codebook", "mixed")]
    return f"{DERIVED}, {found['date']}:\n\n" + table(
        HEAD_METHODS, *(_method(*pair) for pair in zip(rows[::2], rows[1::2], strict=True))
    )


def _assumptions(assumed: dict[str, Any]) -> str:
    return (
        f"Speeds assume that {assumed['issued']:.0%} of the issue slots are used, that a copy reaches "
        f"{assumed['copied']:.0%} of the memory's peak, and the best fp16 attention {assumed['attended']:.0%} of "
        "a copy."
    ).replace("%", " %")


def _decode(rows: list[Row]) -> list[str]:
    by = [[row for row in rows if row["capability"] == capability] for capability in (80, 90)]
    return [
        NAMES[rows[0]["method"]],
        str(rows[0]["head_dim"]),
        _listed({row["query_heads"] for row in rows}),
        " · ".join(span([row["instructions"] for row in one], _digits(one)) for one in by),
        f"{rows[0]['most']:g}",
        span([row["registers"] for row in rows], 0),
        span([row["spills"] for row in rows], 0),
        span([row["bytes_a_load"] for row in rows], 1),
        _chips(by, "share", 100, 0),
        _chips(by, "gain", 1, 1),
    ]


def _others(found: dict[str, list[Row]]) -> list[list[str]]:
    """By version and method, up to 8 query heads apart from more where that makes a difference."""
    made = []
    for version, rows in found.items():
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == method]
            halves = [[row for row in mine if (row["query_heads"] > 8) is more] for more in (False, True)]
            same = _by_dim(halves[0]) == _by_dim(halves[1])
            for part in [mine] if same else filter(None, halves):
                heads = _listed({row["query_heads"] for row in part})
                spills = span([row["spills"] for row in part], 0)
                made.append([version, NAMES[method], heads, _by_dim(part), f"{part[0]['most']:g}", spills])
    return made


def _by_dim(rows: list[Row]) -> str:
    """The most instructions an element at every head_dim."""
    dims = sorted({row["head_dim"] for row in rows})
    sizes = ([row for row in rows if row["head_dim"] == dim] for dim in dims)
    return " · ".join(f"{max(row['instructions'] for row in one):.{_digits(one)}f}" for one in sizes)


def _digits(rows: list[Row]) -> int:
    """Of counts: two where one would not tell from the limit."""
    return 2 if any(abs(row["instructions"] - row["most"]) < NEAR for row in rows) else 1


def _quantized(one: Row, other: Row) -> list[str]:
    by = [[one], [other]]
    return [
        one["method"].replace("-", ", along "),
        " · ".join(f"{row['instructions']:.1f}" for row in (one, other)),
        span([one["registers"], other["registers"]], 0),
        span([one["spills"], other["spills"]], 0),
        _chips(by, "share", 100, 0),
    ]


def _method(one: Row, other: Row) -> list[str]:
    slower = (1 / gain for row in (one, other) for gain in row["gain"].values())
    counts = " · ".join(f"{row['instructions']:.0f}" for row in (one, other))
    return [f"`{one['operation']}`", one["method"], counts, " · ".join(f"{times:.1f}" for times in slower)]


def _chips(by: list[list[Row]], what: str, unit: float, digits: int) -> str:
    """The least and the most on every chip."""
    chips = [[row[what][chip] * unit for row in rows] for rows in by for chip in rows[0][what]]
    return " · ".join(span(found, digits) for found in chips)


def span(values: list[float], digits: int) -> str:
    return " to ".join(dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values))))
