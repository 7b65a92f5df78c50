"""The table of deployed formats and of baselines in docs/formats.md: what is in it is asked of the methods themselves;
``readme.py`` writes it."""

import inspect
from typing import Any

from benchmarks.llama_cpp import FORMATS, pairs
from benchmarks.measured import figures, table
from benchmarks.sources import source_of
from kvq_core.engines import engines
from kvq_core.methods import OFTEN, Method, ModelShape, methods
from kvq_core.methods.deployments import Elsewhere
from kvq_core.sizing.stored import encoded_bits
from kvq_core.spec import DEFAULT_MODEL

HEADS = (64, 128)
LAYERS = 32
COLUMNS = (
    "Name | What is stored | Bits K / V at head_dim 64 | 128 | KLD | Encoding | Kept in fp16 | Rotation | Query | "
    "Prompt | How | Source"
)


def is_format(cls: type[Method]) -> bool:
    """Whether it is in the tables here, not in docs/methods.md's."""
    return any(f".{room}." in cls.__module__ for room in ("formats", "baselines"))


def of_family(name: str, cls: type[Method]) -> bool:
    """Whether it is in docs/methods.md's table: papers' methods, and of a module of formats the most often taken."""
    own = (each for each in OFTEN if methods()[each].__module__ == cls.__module__)
    return not is_format(cls) or next(own, None) == name


def formats_part() -> str:
    """Formats that engines ship, after fp16, which they are read against."""
    return _table(["fp16", *_of_room("formats")])


def baselines_part() -> str:
    """What papers compare with."""
    return _table(_of_room("baselines"))


def engine_part() -> str:
    """Our lanes of llama.cpp's formats beside llama.cpp itself."""
    parts = []
    for found in (figures("llama_cpp") or {}).values():
        rows = [
            [
                f"`{pair}`",
                f"{row['llama_cpp']:.2g}",
                f"{row['ours']:.2g}",
                f"{row['ratio']:.2f}",
                _bounds(*row["allowed"]),
            ]
            for pair, row in found["pairs"].items()
            if "ratio" in row
        ]
        left = ", ".join(
            f"`{pair}`" for pair in map(str, pairs(FORMATS)) if "ratio" not in found["pairs"].get(pair, {})
        )
        turned = "" if found["rotation"] else ", rotation off in both"
        parts.append(
            table("Cache K/V | llama.cpp | Here | Ratio | Asked for", *rows)
            + f"\n\n{found['model']}{turned}, {found['package']}: mean KLD in nats over {found['texts']} texts of "
            f"{found['scored']} positions.{f' Not measured: {left}.' if left else ''}"
        )
    parts += [_noise(keys, found) for keys, found in (figures("llama_cpp_noise") or {}).items()]
    parts += [_many(pair, found) for pair, found in (figures("llama_cpp_texts") or {}).items()]
    return "\n\n".join(parts) or "Not measured yet on enough texts to be kept here."


def _noise(keys: str, found: dict[str, Any]) -> str:
    """How far a row of these keys scatters by rounding alone."""
    ours, theirs = found["ours"], found.get("llama_cpp")
    engine = f", and llama.cpp with other chunks of the prompt {_range(theirs)}" if theirs else ""
    return (
        f"Rounding alone: `{keys}` keys beside values in {len(ours)} formats, none of which costs more than "
        f"{found['values_alone']:.1g} nats by itself, give {_range(ours)} here on the same {found['texts']} "
        f"texts{engine}; on one of them they are up to {found['apart']:.2g} times apart. So a row above may be off by "
        "a tenth by rounding; what is beyond that is not explained by it. `python benchmarks/llama_cpp_noise.py`."
    )


def _many(pair: str, found: dict[str, Any]) -> str:
    """A row again on other texts, with what they leave open."""
    low, high = min(a / b for a, b in _both(found)), max(a / b for a, b in _both(found))
    return (
        f"`{pair.split(',')[0]}` of {found['model']} again on {found['done']} other texts of {found['scored']} "
        f"positions: {found['llama_cpp']:.2g} in llama.cpp, {found['ours']:.2g} here, a ratio of {found['ratio']:.2f} "
        f"(95 % interval over texts {found['low']:.2f} to {found['high']:.2f}); on single texts {low:.2f} to "
        f"{high:.2f}.{_pooled(pair, found)} "
        "`python benchmarks/llama_cpp_texts.py`."
    )


def _pooled(pair: str, found: dict[str, Any]) -> str:
    """These texts and those of the table together."""
    types, _, model = pair.partition(", ")
    first = (figures("llama_cpp") or {})[model or DEFAULT_MODEL]
    row, texts = first["pairs"][types], first["texts"]
    ours = texts * row["ours"] + sum(found["by_text"])
    theirs = texts * row["llama_cpp"] + sum(found["by_text_there"])
    return f" Over all {texts + found['done']} texts the ratio is {ours / theirs:.2f}."


def _both(found: dict[str, Any]) -> list[tuple[float, float]]:
    return list(zip(found["by_text"], found["by_text_there"], strict=True))


def _range(values: list[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


def _bounds(low: float, high: float) -> str:
    return f"{low:g} to {high:g}"


def _of_room(room: str) -> list[str]:
    return [name for name, cls in methods().items() if f".{room}." in cls.__module__]


def _table(names: list[str]) -> str:
    return table(COLUMNS, *(_row(methods()[name]) for name in names))


def _row(cls: type[Method]) -> list[str]:
    method = cls()
    does = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    ways = [f"{_whose(way)}: `{way.how.splitlines()[-1]}`" for way in method.elsewhere()]
    named = f"`{cls.name}`" + (f" [{cls.title}]({cls.paper})" if cls.paper else "")
    rotate = getattr(method, "rotate", None)
    rotation = "its own" if method.not_rotated else ""
    if rotate is not None:
        rotation = f"by a knob, {'on' if rotate else 'off'}"
    return [
        named,
        does,
        *(_bits(method, d) for d in HEADS),
        _distances(cls.name),
        _seconds(cls.name),
        _kept(method),
        rotation,
        method.queries_to or "",
        _prompt(method),
        ways[0] if ways else "",
        source_of(method),
    ]


def _whose(way: Elsewhere) -> str:
    return f"{way.tool}, {way.first}" if way.tool in engines() else way.tool


def _bits(method: Method, head_dim: int) -> str:
    """Of encoded tokens alone, without windows, of random ones: what is stored beside them is told by its bytes in a
    run."""
    if reason := method.why_not(ModelShape(LAYERS, 4, 2, head_dim, 8192)):
        return reason
    return " / ".join(f"{encoded_bits(method, tensor, head_dim):.4g}" for tensor in (0, 1))


def _distances(name: str) -> str:
    """Mean KLD on each measured model, in their order."""
    found = [model["methods"].get(name, {}).get("kld") for model in (figures("methods") or {}).values()]
    return "; ".join("not measured" if kld is None else f"{kld['mean']:.2g}" for kld in found)


def _seconds(name: str) -> str:
    """To encode a long prompt, and the target in parentheses."""
    found = figures("formats") or {"encode_s": {}, "targets": {}}
    seconds, target = found["encode_s"].get(name), found["targets"].get(name)
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" + (f" ({target:g} s)" if target else "")


def _kept(method: Method) -> str:
    """Windows of keys, of values where they differ, and layers."""
    said = []
    for window in dict.fromkeys(method.windows()):
        if window.step is None:
            said.append("all")
            continue
        newest = f"{window.recent} to {window.recent + window.step - 1}" if window.step > 1 else f"{window.recent}"
        first = f"{window.sink} first" if window.sink else ""
        said.append(", ".join(filter(None, (first, f"{newest} newest" if newest != "0" else ""))))
    layers = len(method.kept_layers(LAYERS))
    return "; ".join(filter(None, (*said, f"{layers} of {LAYERS} layers" if layers else "")))


def _prompt(method: Method) -> str:
    home = method.own_home
    return "" if home is None else f"{home.engine}: chunks of {home.chunk:,}, the own one {home.own_chunk}"
