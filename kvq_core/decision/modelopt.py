"""The map of layers that NVIDIA's ModelOpt writes beside a checkpoint: ``hf_quant_config.json``, schema 1 of
``kv_cache_quantized_layers`` (Model-Optimizer, pull request 2272, merged in September 2026).

A layer has FP8, NVFP4, or FP8 keys with NVFP4 values; one that is not named stays as it is. No release of an engine
reads it yet: vLLM's pull request 56116, which is open, reads layers whose keys and values have one format.
"""

import json
from collections.abc import Sequence
from typing import Any

from kvq_core.decision.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.errors import SpecError, excerpt

VERSION = "schema 1, Model-Optimizer pull request 2272"
NAME = "model.layers.{}.self_attn"
APART = "FP8_K_NVFP4_V"
_ALGORITHMS = ("FP8", "NVFP4")  # vLLM's words for the formats, in capitals
_SCHEMA = 1


def algorithms(candidates: Sequence[Candidate]) -> dict[str, str]:
    """What the file calls each candidate that it has."""
    words = {each.name: each.method.cache_types.get("vLLM", "").upper() for each in candidates}
    return {name: word for name, word in words.items() if word in _ALGORITHMS}


def pairs(candidates: Sequence[Candidate]) -> dict[tuple[str, str], str | None]:
    """What a layer's keys and values may be stored in, and the file's name for it; None: it is not named."""
    found: dict[tuple[str, str], str | None] = {(FP16, FP16): None}
    own = algorithms(candidates)
    for key, a in own.items():
        for value, b in own.items():
            if a == b:
                found[key, value] = a
            elif (a, b) == _ALGORITHMS:
                found[key, value] = APART
    return found


def exported(plan: LayerPlan, candidates: Sequence[Candidate]) -> str:
    """The file for a policy. Raises SpecError for a layer that it cannot say."""
    allowed, layers = pairs(candidates), {}
    for number, pair in enumerate(zip(plan.keys, plan.values, strict=True)):
        if pair not in allowed:
            raise SpecError(f"ModelOpt's file cannot say layer {number}: keys {pair[0]} with values {pair[1]}.")
        if (word := allowed[pair]) is not None:
            layers[NAME.format(number)] = {"quant_algo": word}
    used = {each["quant_algo"] for each in layers.values()}
    whole = used.pop() if len(used) == 1 and len(layers) == len(plan.keys) else "MIXED_PRECISION"
    told = {"kv_cache_quant_algo": whole, "kv_cache_quantized_layers": layers, "kv_cache_schema_version": _SCHEMA}
    return json.dumps({"producer": {"name": "modelopt"}, "quantization": told}, indent=2)


def parsed(text: str, candidates: Sequence[Candidate], layers: int) -> LayerPlan:
    """The policy that a file says, on a model of so many layers. Raises SpecError."""
    words = {word: pair for pair, word in pairs(candidates).items() if word is not None}
    try:
        told: dict[str, Any] = json.loads(text)["quantization"]
        if told["kv_cache_schema_version"] != _SCHEMA:
            raise SpecError(f"This file has schema {excerpt(told['kv_cache_schema_version'])}; known is {_SCHEMA}.")
        own = {name: each["quant_algo"] for name, each in told["kv_cache_quantized_layers"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SpecError("This is no quantization file of ModelOpt with a map of layers.") from None
    known = {NAME.format(number): number for number in range(layers)}
    if lost := [name for name, word in own.items() if name not in known or word not in words]:
        raise SpecError(f"This file's {excerpt(lost[0])} is no layer of the model, or its format is no candidate.")
    names = [words[own[name]] if name in own else (FP16, FP16) for name in known]
    return LayerPlan(tuple(key for key, _ in names), tuple(value for _, value in names))
