"""Where a method, or its nearest relative, can be used outside this project."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvq_core.engines import UNRELEASED, engines, first_release


@dataclass(frozen=True)
class Elsewhere:
    """``how``: code or flags to copy; ``differs``: what is not as in this lane, None where it is the same; ``needs``:
    what it takes, hardware first, where not all will do; ``since``: the first release of ``tool`` that has it,
    UNRELEASED where none has, None where that is not known."""

    tool: str
    how: str
    differs: str | None = None
    needs: str | None = None
    since: str | None = None

    @property
    def first(self) -> str:
        """``since`` in words."""
        if self.since is None:
            return "first version not known"
        return "in no release" if self.since == UNRELEASED else f"since {self.since}"


@dataclass(frozen=True)
class Home:
    """How the engine that a method is known from reads a prompt through its cache: in chunks, whose own keys and values
    it reads as computed (``raw``) or as the cache stores them (``stored``)."""

    engine: str
    own_chunk: Literal["raw", "stored"]

    @property
    def chunk(self) -> int:
        """Tokens of one, as the engine's row has them."""
        return engines()[self.engine].prompt_chunk


CONFIG = {  # transformers' own of a QuantizedCache
    "backend": "quanto",
    "nbits": 4,
    "axis_key": 0,
    "axis_value": 0,
    "q_group_size": 64,
    "residual_length": 128,
}
Q4_KEYS = "--cache-type-k q4_0"
UNROTATED = "LLAMA_ATTN_ROT_DISABLE=1 "  # before a command of llama.cpp
HALF_MODEL = "The whole model is in half precision, not the cache alone."
NO_DEPLOYMENT = "No deployment of this method exists yet."


def transformers_cache(bits: int, group_size: int, residual_length: int) -> tuple[Elsewhere, ...]:
    """transformers' group-wise integer cache (5.23), groups along the channels of a token.

    None for 1 and 3 bits, which HQQ alone has: its packing fails on most lengths of a cache at 1 bit, on all at 3.
    """
    backends = {2: ("optimum-quanto", "quanto", 0), 4: ("optimum-quanto", "quanto", 0), 8: ("hqq", "hqq", 1)}
    if bits not in backends or not residual_length:
        return ()
    package, backend, axis = backends[bits]
    code = quantized_cache([package], backend, bits, axis, group_size, residual_length)
    return (
        Elsewhere(
            "transformers",
            code,
            "One width for keys and values. The whole prompt is quantized at once; whenever residual_length newer "
            "tokens are held, all is quantized again, which changes older tokens by rounding alone. Models with full "
            "attention only.",
            since=first_release("transformers", "QuantizedCache"),
        ),
    )


def quantized_cache(
    packages: Iterable[str], backend: str, bits: int, axis: int, group_size: int, residual_length: int
) -> str:
    """transformers' QuantizedCache with a backend, in code."""
    return (
        f"# pip install {' '.join(packages)}\n"
        "from transformers import QuantizedCache\n"
        f'cache = QuantizedCache(backend="{backend}", config=model.config, nbits={bits}, axis_key={axis}, '
        f"axis_value={axis},\n"
        f"                       q_group_size={group_size}, residual_length={residual_length})\n"
        "model.generate(**inputs, past_key_values=cache)"
    )


def llama_cpp(key_bits: int, value_bits: int) -> tuple[Elsewhere, ...]:
    """llama.cpp's cache types of 4 and 8 bits: blocks of 32 channels of a token."""
    types = {4: "q4_0", 8: "q8_0"}
    if key_bits not in types or value_bits not in types:
        return ()
    flags = f"-fa on --cache-type-k {types[key_bits]} --cache-type-v {types[value_bits]}"
    return (
        Elsewhere(
            "llama.cpp",
            flags,
            "Symmetric blocks of 32 with one fp16 scale and no zero-point; every token is quantized, there is no "
            "full-precision window; newer builds rotate quantized keys and values first.",
            since=first_release("llama.cpp", types[key_bits]),
        ),
    )


def fp8_servers(bits: int) -> tuple[Elsewhere, ...]:
    """Servers' 8-bit floating-point caches, the nearest thing to 8-bit integers there."""
    if bits != 8:
        return ()
    differs = "8-bit floating point instead of integers with a scale and zero-point a group; no full-precision window."
    return (
        Elsewhere("vLLM", "--kv-cache-dtype fp8", differs, since=first_release("vLLM", "fp8")),
        Elsewhere("SGLang", "--kv-cache-dtype fp8_e5m2", differs, since=first_release("SGLang", "fp8_e5m2")),
    )


def generate_cache(config: Mapping[str, Any]) -> str:
    """What transformers' generate is given as ``cache_implementation`` for a QuantizedCache, and behind it; what
    ``config`` lacks is what transformers takes."""
    return f'"quantized", cache_config={json.dumps({**CONFIG, **config})}'


def with_center(ways: tuple[Elsewhere, ...], center: str) -> tuple[Elsewhere, ...]:
    """The ways to use a method for a lane that centres its keys, which none of them does.

    The one engine that subtracts a constant is a fork of llama.cpp: after RoPE, and from q4_0 keys alone
    (docs/kv-mean-center.md there).
    """
    if center == "none":
        return ways
    mend = " python -m kvq_core mend writes a file without slow biases." if center == "slow" else ""
    plain = _with_note(ways, f"Keys are stored as they are, not centred.{mend}")
    of_q4 = [way for way in ways if Q4_KEYS in way.how] if center == "mean_after_rope" else []
    return (*plain, *map(_fork, of_q4))


def with_fold(ways: tuple[Elsewhere, ...], fold: str) -> tuple[Elsewhere, ...]:
    """The ways to use a method for a lane that folds scales of keys, which no engine does by itself."""
    said = "Keys are stored as they are; python -m kvq_core mend writes a file with scales folded in."
    return ways if fold == "none" else _with_note(ways, said)


def _with_note(ways: tuple[Elsewhere, ...], said: str) -> tuple[Elsewhere, ...]:
    return tuple(replace(way, differs=" ".join(filter(None, (said, way.differs)))) for way in ways)


def with_rotation(ways: tuple[Elsewhere, ...], rotate: str) -> tuple[Elsewhere, ...]:
    """The ways to use a method for a lane that turns what it stores, which llama.cpp alone does, its newer builds."""
    if rotate == "none":
        return ways
    said = "Nothing is rotated."
    turns = [way.tool.startswith("llama.cpp") and not way.how.startswith(UNROTATED) for way in ways]
    return tuple(
        way if turned else replace(way, differs=" ".join(filter(None, (said, way.differs))))
        for way, turned in zip(ways, turns, strict=True)
    )


def _fork(way: Elsewhere) -> Elsewhere:
    """llama.cpp's way in the fork that centres keys after RoPE."""
    how = (
        "llama-kv-mean-center -m model.gguf -f texts.txt -o center.gguf\n"
        f"llama-cli -m model.gguf {way.how} --kv-mean-center center.gguf"
    )
    differs = (
        "The constant is the mean over texts read beforehand, not over the prompt; nothing is added back, which the "
        f"softmax does not see where every key has lost it. {way.differs or ''}"
    )
    return Elsewhere("llama.cpp, PrismML-Eng's fork", how, differs.strip())
