"""Bundles: lanes that answer one question together, named in a spec in place of ``lanes``.

A bundle is gone once it is read: a run is of its lanes, and links and records hold those.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvq_core.errors import SpecError, did_you_mean, excerpt
from kvq_core.presets.equal import LLAMA_CPP, LaneData, equal_bytes, equal_loss
from kvq_core.sizing.count import CacheAt


@dataclass(frozen=True)
class BundleOption:
    """An option that is one of some words."""

    values: tuple[str, ...]

    def read(self, given: Any) -> str | None:
        """The value, or None for one that is not allowed."""
        return given if given in self.values else None

    @property
    def allowed(self) -> str:
        return ", ".join(self.values)


@dataclass(frozen=True)
class Number:
    """An option that is a number from ``least`` to ``most``, whole where they are."""

    least: float
    most: float
    offered: float  # by the form

    def read(self, given: Any) -> float | None:
        """The value, or None for one that is not allowed; text of a number is one, as a command line gives it."""
        try:
            value = float(given) if isinstance(given, int | float | str) and not isinstance(given, bool) else None
        except ValueError:
            return None
        if value is None or not self.least <= value <= self.most:
            return None
        if isinstance(self.least, int):
            return int(value) if value == int(value) else None
        return value

    @property
    def allowed(self) -> str:
        return f"a {'whole ' if isinstance(self.least, int) else ''}number from {self.least:g} to {self.most:g}"

    @property
    def values(self) -> tuple[str, ...]:
        return (f"{self.offered:g}",)


@dataclass(frozen=True)
class Bundle:
    """``options``: what is given beside its name; the first may stand behind a colon. ``solved``: its lanes depend on
    where a cache ends up, which they are given as ``at``."""

    title: str
    question: str
    lanes: Callable[..., list[LaneData]]
    options: dict[str, BundleOption | Number]
    solved: bool = False


def bundle_lanes(given: Any, where: Callable[[], CacheAt] | None = None) -> list[LaneData]:
    """The lanes of a bundle given by its name, or as an object of ``name`` and its options. ``where``: the caches that
    they are for; asked where the lanes depend on it.

    Raises SpecError for a bundle, an option or a value that is not there.
    """
    told = {"name": given} if isinstance(given, str) else given
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        raise SpecError(f"bundle = {excerpt(given)} is not allowed; give a name: {', '.join(BUNDLES)}.")
    name, options = told["name"], {key: value for key, value in told.items() if key != "name"}
    if name not in BUNDLES:
        raise SpecError(
            f"Unknown bundle {excerpt(name)}.{did_you_mean(name, BUNDLES)} Available: {', '.join(BUNDLES)}."
        )
    known = BUNDLES[name].options
    for key, value in options.items():
        if key not in known:
            raise SpecError(f"bundle {name}: unknown option {excerpt(key)}; allowed: {', '.join(known) or 'none'}.")
        if (read := known[key].read(value)) is None:
            raise SpecError(f"bundle {name}: {key} = {excerpt(value)} is not allowed; allowed: {known[key].allowed}.")
        options[key] = read
    placed = {"at": where()} if where and BUNDLES[name].solved else {}
    return BUNDLES[name].lanes(**options, **placed)


OF_A_LANE = ("prefill", "sink_tokens", "recent_tokens")


def lane(method: str, label: str = "", **more: Any) -> LaneData:
    """A lane's data; what is no field of a lane is a knob."""
    fields = {name: more.pop(name) for name in [*more] if name in OF_A_LANE}
    return {"method": method, **({"label": label} if label else {}), **({"knobs": more} if more else {}), **fields}


def _papers() -> list[LaneData]:
    return [
        lane("kivi", "KIVI 2", bits=2),
        lane("squat", "SQuat 2", bits=2),
        lane("innerq", "InnerQ 2", bits=2),
        lane("qaq", "QAQ 2", target_bits=2.0),
        lane("svdq", "SVDq 2, V 2", value_bits=2),
        lane("commvq", "CommVQ 2", bits=2),
        lane("per_token", "Per token 2", bits=2),
    ]


def _baselines() -> list[LaneData]:
    """What the papers compare with, in the settings they give: methods.md of the papers, tables of results."""
    gear = {"bits": 2, "group_size": 32, "rank": 2, "loops": 3}
    return [
        lane("kivi", "KIVI 2, 32 sinks", bits=2, residual_length=96, sink_tokens=32),
        lane("gear", "GEAR 2, rank 2", **gear),
        lane("gear", "GEAR-L 2, rank 2", **gear, outlier_fraction=0),
        *(
            lane("zipcache", f"ZipCache 4/2, {share:.0%}", salient_fraction=share, streaming_gap=32)
            for share in (0.5, 0.4, 0.3)
        ),
        lane("kvquant", "KVQuant 2, 1%", bits=2, outlier_fraction=0.01),
        lane("rvq", "VQLLM 256 x 8", entries=256, steps=8),
        lane("rvq", "VQLLM 256 x 4", entries=256, steps=4),
        lane("think", "ThinK 3/4 at 4 bits", pruned=0.25, bits=4),
        lane("shadowkv", "ShadowKV, rank 160", rank=160),
        lane("h2o", "H2O, 20%", heavy=0.1, recent=0.1),
        lane("scissorhands", "Scissorhands, 20%", heavy=0.1, recent=0.1),
        lane("uniform", "Uniform 4", bits=4),
        lane("uniform", "Uniform 4, 1% apart", bits=4, outlier_fraction=0.01),
    ]


def _llama_cpp() -> list[LaneData]:
    return [lane(name, f"llama.cpp {name}", prefill="deployed") for name in LLAMA_CPP]


def _vllm() -> list[LaneData]:
    presets = ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")
    names = ("int8_per_token_head", "int4_per_token_head", "fp8_per_token_head", "nvfp4", "ultraquant_4bit")
    return [
        lane("fp8", "vLLM fp8", prefill="deployed"),
        lane("fp8", "vLLM fp8_e5m2", format="e5m2", prefill="deployed"),
        *(lane(name, f"vLLM {name}", prefill="deployed") for name in names),
        lane("nvfp4", "vLLM nvfp4_4over6", four_over_six=True, prefill="deployed"),
        *(lane("turboquant", f"vLLM {name}", preset=name, prefill="deployed") for name in presets),
    ]


def _sglang() -> list[LaneData]:
    own = {"chunk": 2048, "own_chunk": "raw"}  # its Triton backend reads what it has just computed
    return [
        lane("fp8", "SGLang fp8_e4m3", quantize_query=False, prefill=own),
        lane("fp8", "SGLang fp8_e5m2", format="e5m2", prefill=own),
        lane("nvfp4", "SGLang nvfp4", prefill=own),
        lane("mxfp4", "SGLang fp4_mx_block16", prefill=own),
    ]


def _transformers() -> list[LaneData]:
    return [
        lane("quanto", "transformers quanto 4", bits=4),
        lane("quanto", "transformers quanto 2", bits=2),
        lane("hqq", "transformers hqq 8", bits=8, axis=1),
        lane("hqq", "transformers hqq 4, axis 0", bits=4, axis=0),
    ]


def _exllama() -> list[LaneData]:
    return [lane("exl3", f"ExLlamaV3 {bits}", bits=bits, prefill="deployed") for bits in (8, 6, 5, 4, 3, 2)]


def _deploy() -> list[LaneData]:
    return [*_llama_cpp(), *_vllm(), *_sglang(), *_transformers(), *_exllama()]  # as many as go in one batch


def _eight_bit() -> list[LaneData]:
    return [
        lane("bf16", "bf16"),
        lane("q8_0", "llama.cpp q8_0", prefill="deployed"),
        lane("int8_per_token_head", "vLLM int8_per_token_head", prefill="deployed"),
        lane("fp8_per_token_head", "vLLM fp8_per_token_head", prefill="deployed"),
        lane("fp8", "vLLM fp8", prefill="deployed"),
        lane("fp8", "vLLM fp8_e5m2", format="e5m2", prefill="deployed"),
        lane("exl3", "ExLlamaV3 8", bits=8, prefill="deployed"),
        lane("hqq", "transformers hqq 8", bits=8, axis=1),
    ]


WINDOWS = {"none": {"sink_tokens": 0, "recent_tokens": 0}, "4 + 128": {"sink_tokens": 4, "recent_tokens": 128}}
WINDOWED = ("q4_0", "iq4_nl", "int4_per_token_head", "nvfp4", "mxfp4", "exl3", "per_token", "uniform")


def _equal_windows() -> list[LaneData]:
    return [lane(name, f"{name}, {words}", **window) for name, (words, window) in product(WINDOWED, WINDOWS.items())]


UNQUANTIZED = "fp16"


def _widths(method: str, *every: int) -> dict[str, LaneData | None]:
    return {UNQUANTIZED: None, **{str(bits): {"method": method, "knobs": {"bits": bits}} for bits in every}}


def _names(*every: str) -> dict[str, LaneData | None]:
    return {UNQUANTIZED: None, **{name: {"method": name} for name in every}}


# formats of keys and of values, by the family's name; None: not quantized
FAMILIES: dict[str, dict[str, LaneData | None]] = {
    "llama.cpp": _names(*LLAMA_CPP),
    "vllm": _names("int8_per_token_head", "fp8_per_token_head", "fp8", "nvfp4", "int4_per_token_head")
    | {"fp8_e5m2": {"method": "fp8", "knobs": {"format": "e5m2"}}},
    "exllamav3": _widths("exl3", *range(8, 1, -1)),
    "KIVI": _widths("kivi", 8, 4, 3, 2),
}


def _grid(family: str = "llama.cpp") -> list[LaneData]:
    """Every key format with every value format but fp16 with itself, which is the noise floor."""
    return list(_cells(FAMILIES[family]))


def _cells(types: dict[str, LaneData | None]) -> Iterator[LaneData]:
    for (key, keys), (value, values) in product(types.items(), repeat=2):
        label = f"K {key} V {value}"
        if keys is None or values is None:
            if one := keys or values:
                yield {**one, "tensors": "keys" if keys else "values", "label": label}
        elif key == value:
            yield {**keys, "label": label}
        else:
            yield {"rules": [{**keys, "tensors": "keys"}, {**values, "tensors": "values"}], "label": label}


def _within(kld: float = 0.01) -> list[LaneData]:
    """All widths: what lies within the loss is known once they have run."""
    return list(equal_loss())


def _plain(title: str, question: str, lanes: Callable[[], list[LaneData]]) -> Bundle:
    return Bundle(title, question, lanes, {})


BUNDLES: dict[str, Bundle] = {
    "seed-2bit": _plain("The papers at two bits", "Which paper's method holds up at two bits?", _papers),
    "baselines": _plain("The papers' baselines", "What do the methods that papers compare with cost here?", _baselines),
    "deploy": _plain("What engines ship", "Which format that I can switch on today is safe here?", _deploy),
    "deploy-vllm": _plain("vLLM's formats", "Which --kv-cache-dtype is safe here?", _vllm),
    "deploy-sglang": _plain("SGLang's formats", "Which --kv-cache-dtype of SGLang is safe here?", _sglang),
    "deploy-llama-cpp": _plain("llama.cpp's formats", "Which -ctk and -ctv are safe here?", _llama_cpp),
    "deploy-transformers": _plain("transformers' caches", "Which QuantizedCache is safe here?", _transformers),
    "deploy-exllamav3": _plain("ExLlamaV3's widths", "Which -cq is safe here?", _exllama),
    "eight-bit": _plain("Eight bits", "Is any 8-bit cache lossless here?", _eight_bit),
    "equal-windows": _plain(
        "Equal windows", "How much of a format's quality is its full-precision window?", _equal_windows
    ),
    "equal-bytes": Bundle(
        "Equal bytes",
        "Which method is best at one budget of bits an element?",
        equal_bytes,
        {
            "bits": Number(1.0, 16.0, 4.5),
            "tokens": Number(64, 131072, 1024),
            "layers": Number(1, 256, 30),
            "kv_heads": Number(1, 128, 3),
            "head_dim": Number(16, 512, 64),
        },
        solved=True,
    ),
    "equal-loss": Bundle(
        "Equal loss",
        "Of each family, which takes the fewest bytes within a loss?",
        _within,
        {"kld": Number(1e-6, 10.0, 0.01)},
    ),
    "grid": Bundle(
        "Keys against values",
        "Which needs the bits, keys or values?",
        _grid,
        {"family": BundleOption(tuple(FAMILIES))},
    ),
}
