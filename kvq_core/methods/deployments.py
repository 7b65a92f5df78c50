"""Where a method, or its nearest relative, can be used outside this project."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """``how``: code or flags to copy; ``differs``: what is not as in this lane, None where it is the same."""

    tool: str
    how: str
    differs: str | None = None


NO_DEPLOYMENT = "No deployment of this method exists yet."


def transformers_cache(bits: int, group_size: int, residual_length: int) -> tuple[Elsewhere, ...]:
    """transformers' group-wise integer cache (5.23), groups along the channels of a token.

    None for 1 and 3 bits, which HQQ alone has: its packing fails on most lengths of a cache at 1 bit, on all at 3.
    """
    backends = {2: ("optimum-quanto", "quanto", 0), 4: ("optimum-quanto", "quanto", 0), 8: ("hqq", "hqq", 1)}
    if bits not in backends or not residual_length:
        return ()
    package, backend, axis = backends[bits]
    code = (
        f"# pip install {package}\n"
        "from transformers import QuantizedCache\n"
        f'cache = QuantizedCache(backend="{backend}", config=model.config, nbits={bits}, axis_key={axis}, '
        f"axis_value={axis},\n"
        f"                       q_group_size={group_size}, residual_length={residual_length})\n"
        "model.generate(**inputs, past_key_values=cache)"
    )
    return (
        Elsewhere(
            "transformers",
            code,
            "One width for keys and values. The whole prompt is quantized at once; whenever residual_length newer "
            "tokens are held, all is quantized again, which changes older tokens by rounding alone. Models with full "
            "attention only.",
        ),
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
        ),
    )


def fp8_servers(bits: int) -> tuple[Elsewhere, ...]:
    """Servers' 8-bit floating-point caches, the nearest thing to 8-bit integers there."""
    if bits != 8:
        return ()
    differs = "8-bit floating point instead of integers with a scale and zero-point a group; no full-precision window."
    return (
        Elsewhere("vLLM", "--kv-cache-dtype fp8", differs),
        Elsewhere("SGLang", "--kv-cache-dtype fp8_e5m2", differs),
    )
