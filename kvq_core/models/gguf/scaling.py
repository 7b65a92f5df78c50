"""How a GGUF file scales RoPE, in transformers' terms, whose own reader of GGUF files passes it over.

llama.cpp turns pair i of a head at position p by p * base**(-2i / head_dim) / factor, where the factor is one number
(linear), one for each pair (the tensor ``rope_freqs.weight``: Llama 3), or depends on the pair's wavelength (YaRN,
Peng et al. 2023, arXiv 2309.00071).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvq_core.errors import excerpt

FREQUENCIES = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_parameters(
    value: Callable[[str, Any], Any], head_dim: int, context: int, factors: np.ndarray | None
) -> dict[str, Any]:
    """transformers' ``rope_parameters``. ``value`` looks up a key behind ``{architecture}.rope.``, with a default;
    ``factors`` (head_dim / 2) is the tensor of frequencies, if the file has one.

    Raises ValueError for a scaling that is not known here.
    """
    base = float(value("freq_base", 10000.0))
    factor = float(value("scaling.factor", value("scale_linear", 0.0))) or 1.0
    kind = value("scaling.type", "linear" if factor != 1 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"rope.scaling.type = {excerpt(kind)} is not known here; known are none, linear and yarn")
    if not (base > 0 and factor > 0 and math.isfinite(base * factor)):
        raise ValueError(f"rope.freq_base = {base:g} and rope.scaling.factor = {factor:g} must be above 0")
    if kind == "none":
        factor = 1.0
    attention = float(value("scaling.attn_factor", 1.0))
    if kind != "yarn" and attention != 1:
        raise ValueError(
            f"rope.scaling.attn_factor = {attention:g} is known with yarn alone, and its scaling is {kind}"
        )
    if factors is not None and bool((factors != 1).any()):
        if factor != 1:
            raise ValueError(f"it has both rope.scaling.type = {kind} and the tensor {FREQUENCIES}")
        return {"rope_theta": base, **_by_pair(factors, base, head_dim, context)}
    if kind == "yarn":
        return {"rope_theta": base, **_yarn(value, factor, context)}
    if factor != 1:
        return {"rope_theta": base, "rope_type": "linear", "factor": factor}
    return {"rope_theta": base, "rope_type": "default"}


def _yarn(value: Callable[[str, Any], Any], factor: float, context: int) -> dict[str, Any]:
    """Queries and keys are multiplied by ``attn_factor * (1 + 0.1 ln factor)``: one number for transformers.

    Where a file says how many turns bound the blend (beta_fast and beta_slow) it is believed; llama.cpp takes 32 and 1
    for most architectures, whatever their files say, and passes over two more keys, which are refused. An original
    context of 0 is the model's own (llama-context.cpp, ``cparams.n_ctx_orig_yarn``).
    """
    for name in ("yarn_ext_factor", "yarn_attn_factor"):
        if float(value(f"scaling.{name}", 1.0)) != 1:
            raise ValueError(f"rope.scaling.{name} other than 1 is not known here")
    attention = float(value("scaling.attn_factor", 1.0))
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(value("scaling.original_context_length", 0)) or context,
        "beta_fast": float(value("scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(value("scaling.yarn_beta_slow", 1.0)),
        "attention_factor": attention * (1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0),
    }


def _by_pair(factors: np.ndarray, base: float, head_dim: int, context: int) -> dict[str, Any]:
    """Llama 3's parameters where the factors are those; else the factors themselves, for every length of the text."""
    if factors.shape != (head_dim // 2,) or not (np.isfinite(factors) & (factors > 0)).all():
        raise ValueError(f"the tensor {FREQUENCIES} does not hold {head_dim // 2} factors above 0")
    largest = float(factors.max())
    if np.allclose(factors, _llama3(largest, base, head_dim), rtol=1e-5, atol=0):
        return {"rope_type": "llama3", "factor": largest, **_LLAMA3}
    told = [float(factor) for factor in factors]
    return {
        "rope_type": "longrope",
        "short_factor": told,
        "long_factor": told,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _llama3(factor: float, base: float, head_dim: int) -> np.ndarray:
    """Factors of Llama 3.1 and later: short wavelengths stay, long ones are stretched, those between are blended."""
    low, high, original = _LLAMA3.values()
    waves = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((original / waves - low) / (high - low), 0, 1)
    return 1 / ((1 - blend) / factor + blend)
