"""An engine's flags read back: the policy that they say on a model, and the lane that stores so."""

import argparse
import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NoReturn

from kvq_core.analysis.deploy import ENGINES
from kvq_core.decision.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.decision.spaces import words_in
from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import make
from kvq_core.methods.deployments import UNROTATED, generate_cache
from kvq_core.sizing.formats import formats
from kvq_core.spec import Lane

# Engines by what is told of them; where several have a flag, the first is meant whose formats the words are.
_APART = ("llama.cpp", "ik_llama.cpp")
_TOGETHER = ("vLLM", "SGLang", "TensorRT-LLM")
_CALLED = {"ctk": ("-ctk", "--cache-type-k"), "ctv": ("-ctv", "--cache-type-v")}
_CONFIG = re.compile(r"cache_config=(\{[^{}]*\})")  # of transformers' generate
KNOWN = "-ctk q8_0 -ctv q4_0, --kv-cache-dtype fp8, -cq 8,4, cache_config={...}"


def lane_of_flags(command: str, layers: int | None) -> Lane:
    """The lane of a command's flags, on a model of so many layers where they name single ones. Raises SpecError."""
    given = _read(command)
    if layers is None and (given["skip"] or any(given[f"{flag}_{at}"] for flag in _CALLED for at in ("first", "last"))):
        raise SpecError("These flags name single layers, and how many the model has is not known before it is loaded.")
    refusals = []
    for name in _engines(given, command):
        try:
            plan = policy_of_flags(name, command, engine_formats(), layers or 1)
            keys_first = sorted(engine_formats(), key=lambda each: each.name not in plan.keys)
            return plan.lane(keys_first)
        except SpecError as error:
            refusals.append(error)
    raise refusals[0]


def policy_of_flags(name: str, command: str, candidates: Sequence[Candidate], layers: int) -> LayerPlan:
    """The policy that a command says to the engine of that name, on a model of so many layers. Raises SpecError."""
    words = {word: own for own, word in words_in(name, candidates).items()}
    given = _read(command)
    try:
        if ENGINES[name].apart:
            plain = ENGINES[name].plain or ""
            return LayerPlan(*(_ends(given, flag, words, layers, plain) for flag in _CALLED))
        own, skipped = words[given["both"] or ""], set(given["skip"])
        both = tuple(FP16 if layer in skipped else own for layer in range(layers))
        return LayerPlan(both, both)
    except KeyError as error:
        known = ", ".join(filter(None, words))
        raise SpecError(f"{name} has no format {excerpt(error.args[0])} here; known: {known}.") from None


@cache
def engine_formats() -> tuple[Candidate, ...]:
    """Every format that an engine has, but fp16, which every policy may take: those that llama.cpp rotates also without
    that, as its fork stores them."""
    found = []
    for each in formats():
        method = make(each.method, **each.knobs)
        if method.quantizes:
            found.append(Candidate(each.name, method))
        if "rotate" in type(method).model_fields and "llama.cpp" in method.cache_types:
            found.append(Candidate(f"{each.name} unrotated", make(each.method, **each.knobs, rotate=False)))
    return tuple(found)


def _engines(given: dict[str, Any], command: str) -> Iterator[str]:
    """Engines that the flags may be for. Raises SpecError where there is no flag of a cache."""
    if given["config"]:
        yield "transformers"
        return
    if given["cq"]:
        yield "ExLlamaV3"
    if given["ctk"] or given["ctv"]:
        fork = UNROTATED.strip() in command or given["ctk_first"] or given["ctv_first"]
        yield from _APART[::-1] if fork or given["ctk_last"] or given["ctv_last"] else _APART
    if given["both"]:
        yield from _TOGETHER
    if not (given["cq"] or given["ctk"] or given["ctv"] or given["both"]):
        raise SpecError(f"{excerpt(command)} holds no flags of a KV cache; known: {KNOWN}.")


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SpecError(f"These flags cannot be read: {message}.")


def _read(command: str) -> dict[str, Any]:
    """Flags of a KV cache by name; others are passed over. Raises SpecError."""
    reader = _Flags(add_help=False, allow_abbrev=False)
    reader.add_argument("--kv-cache-dtype", "--kv_cache_dtype", dest="both")
    reader.add_argument("--kv-cache-dtype-skip-layers", dest="skip", nargs="*", type=int, default=[])
    reader.add_argument("-cq", "--cache_quant", "--cache-quant", dest="cq")
    for flag, names in _CALLED.items():
        reader.add_argument(*names, dest=flag)
        for where in ("first", "last"):
            reader.add_argument(f"-{flag}-{where}")
    try:
        given = vars(reader.parse_known_args(shlex.split(command))[0])
        given["config"] = _CONFIG.search(command)
        if given["config"]:
            given["both"] = generate_cache(ast.literal_eval(given["config"][1]))
    except (ValueError, SyntaxError, TypeError, AttributeError) as error:
        raise SpecError(f"These flags cannot be read: {error}.") from None
    if given["cq"]:
        keys, _, values = given["cq"].partition(",")
        given |= {"ctk": keys, "ctv": values or keys}
    return given


def _ends(given: dict[str, Any], flag: str, words: dict[str, str], layers: int, plain: str) -> tuple[str, ...]:
    """Formats of keys, or of values, by layer. Raises KeyError for a word that is none of the engine's."""
    names = [words[given[flag] or plain]] * layers
    for where in ("first", "last"):
        told = given[f"{flag}_{where}"]
        if told is not None:
            word, _, count = told.partition(",")
            if not (count.isascii() and count.isdigit() and int(count) <= layers):
                raise SpecError(
                    f"-{flag}-{where} = {excerpt(told)} is not allowed; give TYPE,LAYERS, at most {layers} of them."
                )
            at = range(int(count)) if where == "first" else range(layers - int(count), layers)
            for layer in at:
                names[layer] = words[word]
    return tuple(names)
