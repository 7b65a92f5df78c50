"""What policies engines load, in the version that was read, and the flags and files that say one.

A format's name there is its method's ``cache_types``; ``flags`` writes what ``engine_flags`` reads back. ModelOpt's map
of layers is ``hf_quant_config.json`` beside a checkpoint, schema 1 of ``kv_cache_quantized_layers`` (Model-Optimizer,
pull request 2272, merged in September 2026).
"""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from kvq_core.engines import engines
from kvq_core.errors import SpecError, excerpt
from kvq_core.recommend import engine_limits as modelopt
from kvq_core.recommend.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.recommend.solver import Costs, SolvedPolicy, by_layer, ends_apart, free, one_each, skip_list

Solve = Callable[[Costs, int], SolvedPolicy]
_SOLVERS: dict[str, Solve] = {"skip": skip_list, "each": one_each, "ends": ends_apart}
# engines whose policies are known, as the command names them
SPACES = {name.lower(): name for name, row in engines().items() if row.policies}
MODELOPT = "modelopt"  # whose policies are a file


def engine_title(engine: str) -> str:
    """An engine's name. Raises SpecError for one whose policies are not known."""
    if engine == MODELOPT:
        return "ModelOpt"
    if engine not in SPACES:
        names = ", ".join([*SPACES, MODELOPT])
        raise SpecError(f"engine = {excerpt(engine)} is not allowed; policies are known of {names}.")
    return SPACES[engine]


def version_of(engine: str) -> str:
    """What was read of it."""
    if engine == MODELOPT:
        return f"{modelopt.VERSION}; only an open pull request of vLLM reads it, 56116"
    return engines()[engine_title(engine)].version


def words_of(engine: str, candidates: Sequence[Candidate]) -> dict[str, str]:
    """What the engine, as the command names it, calls each candidate that it has, and the unquantized cache."""
    if engine == MODELOPT:
        return {**modelopt.algorithms(candidates), FP16: ""}
    return words_in(engine_title(engine), candidates)


def words_in(name: str, candidates: Sequence[Candidate]) -> dict[str, str]:
    """``words_of`` of an engine by its name."""
    found = {each.name: word for each in candidates if (word := each.method.cache_types.get(name))}
    return {**found, FP16: engines()[name].plain or ""}


def solve(costs: Costs, budget: int, engine: str | None, candidates: Sequence[Candidate]) -> SolvedPolicy:
    """The best policy of an engine's space, or of all. Raises SpecError where the engine has none of the candidates, or
    none of its policies fits."""
    if engine is None:
        return free(costs, budget)
    own = words_of(engine, candidates)
    if len(own) == 1:
        raise SpecError(
            f"{engine_title(engine)} has none of the formats {', '.join(costs.names[:-1])}; score some that it has."
        )
    if engine == MODELOPT:
        return by_layer(costs, budget, list(modelopt.pairs(candidates)))
    solver = _SOLVERS[engines()[SPACES[engine]].policies or ""]
    found = solver(costs.only(tuple(own)), budget)
    return SolvedPolicy.of(found.plan, costs)


def flags(engine: str, plan: LayerPlan, candidates: Sequence[Candidate]) -> str:
    """The command for a policy of the engine's space, or the file that says it."""
    name = engine_title(engine)
    if engine == MODELOPT:
        return modelopt.exported(plan, candidates)
    words, command = words_of(engine, candidates), engines()[name].command
    if engines()[name].policies == "skip":
        stored = [each for each in plan.keys if each != FP16]
        skipped = [str(layer) for layer, each in enumerate(plan.keys) if each == FP16]
        said = command.format(both=words[stored[0]] if stored else words[FP16])
        return f"{said} {engines()[name].skip} {' '.join(skipped)}" if stored and skipped else said
    runs = {letter: _runs(names) for letter, names in (("k", plan.keys), ("v", plan.values))}
    base = {letter: words[found[1][0]] for letter, found in runs.items()}
    said = command.format(keys=base["k"], values=base["v"])
    for letter, (first, _, last) in runs.items():
        for where, (each, count) in (("first", first), ("last", last)):
            said += f" -ct{letter}-{where} {words[each]},{count}" if count else ""
    return said


def _runs(names: Sequence[str]) -> list[tuple[str, int]]:
    """First, middle and last layers: a format and how many; the middle is what most are where there are fewer runs."""
    found = [(name, len(list(each))) for name, each in groupby(names)]
    if len(found) == 1:
        return [("", 0), found[0], ("", 0)]
    if len(found) == 2:
        return [found[0], found[1], ("", 0)] if found[0][1] < found[1][1] else [("", 0), *found]
    return found


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
