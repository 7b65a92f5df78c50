"""An engine's flags read back: the policy that they say on a model, and the lane that stores so."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from kvq_core.engines import UNRELEASED, engines, front_ends
from kvq_core.errors import SpecError, excerpt
from kvq_core.methods import LayerKind, Method, make
from kvq_core.presets.formats import formats
from kvq_core.recommend.engine_limits import words_in
from kvq_core.recommend.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.recommend.pasted_words import quantized_cache_settings, scan
from kvq_core.spec import Lane

# Engines by what is told of them; where several have a flag, the first is meant whose formats the words are, unless the
# text names one.
_UNROTATED = re.compile(r"LLAMA_ATTN_ROT_DISABLE\W+1")
_CALLED = ("ctk", "ctv")
_TURNS = {"-khad", "-vhad"}
_NEAREST = "The nearest is per_token with bits = {}, group_size = {}, residual_length = 0."
KNOWN = "-ctk q8_0 -ctv q4_0, --kv-cache-dtype fp8, -cq 8,4, cache_config={...}, OLLAMA_KV_CACHE_TYPE=q8_0"


def lane_of_flags(command: str, layers: Sequence[LayerKind] | None) -> Lane:
    """The lane of a command's flags on a model of these layers, None: not known, and none may be named. Those that
    attend to a window are stored so, too, unless the flags leave them out. Raises SpecError."""
    given = _read(command)
    if layers is None and (given["skip"] or any(given[f"{flag}_{at}"] for flag in _CALLED for at in ("first", "last"))):
        raise SpecError("These flags name single layers, and how many the model has is not known before it is loaded.")
    if (config := quantized_cache_settings(command)) is not None:
        return _of_transformers(config)
    refusals, formats = [], _readable()
    windowed = [at for at, layer in enumerate(layers or ()) if layer.kind == "sliding"]
    sliding = any(layer.window is not None for layer in layers or ()) and not (windowed and given["windows"])
    for name in _engines(given, command):
        try:
            plan = policy_of_flags(name, command, formats, len(layers or ()) or 1, windowed)
            keys_first = sorted(formats, key=lambda each: each.name not in plan.keys)
            return plan.lane([_switched(each, given) for each in keys_first], sliding=sliding)
        except SpecError as error:
            refusals.append(error)
    raise refusals[0]


def passed_over(command: str, lane: Lane) -> tuple[str, ...]:
    """Flags of a command that change what an engine stores, and are no part of the lane that was read from it."""
    turned = any(_turns_where_asked(rule.build()) for rule in lane.every_rule)
    return tuple(each for each in scan(command)["switches"] if not (turned and each in _TURNS))


def policy_of_flags(
    name: str, command: str, candidates: Sequence[Candidate], layers: int, windowed: Sequence[int] = ()
) -> LayerPlan:
    """The policy that a command says to the engine of that name, on a model of so many layers, of which ``windowed``
    attend to a sliding window. Raises SpecError."""
    words = {word: own for own, word in _words(name, candidates)}
    words |= {also: words[word] for also, word in engines()[name].also.items() if word in words}
    given = _read(command)
    try:
        if engines()[name].apart:
            plain = engines()[name].plain or ""
            return LayerPlan(*(_ends(given, flag, words, layers, plain) for flag in _CALLED))
        own, skipped = words[given["both"] or ""], set(given["skip"])
    except KeyError as error:
        known = ", ".join(filter(None, words))
        raise SpecError(f"{name} has no format {excerpt(error.args[0])} here; known: {known}.") from None
    if skipped and max(skipped) >= layers:
        raise SpecError(f"Layer {max(skipped)} is left out there, and the model has {layers}, from 0.")
    skipped |= set(windowed) if skipped and given["windows"] else set()
    both = tuple(FP16 if layer in skipped else own for layer in range(layers))
    return LayerPlan(both, both)


def _words(name: str, candidates: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
    """Candidates by their names, and what the engine calls them: also what its flags say that no release takes yet."""
    yield FP16, make(FP16).cache_types.get(name, "")
    for each in candidates:
        ways = (way.how for way in each.method.elsewhere() if (way.tool, way.since) == (name, UNRELEASED))
        yield from ((each.name, word) for how in ways if (word := scan(how)["both"]))
    yield from words_in(name, candidates).items()


@cache
def engine_formats() -> tuple[Candidate, ...]:
    """Every format that an engine has, but fp16, which every policy may take: those that llama.cpp rotates also without
    that, as its fork stores them."""
    found = []
    for each in formats():
        method, knobs = each.lane.build(), each.lane.knobs
        if method.quantizes:
            found.append(Candidate(each.name, method))
        if "rotate" in type(method).model_fields and "llama.cpp" in method.cache_types:
            found.append(Candidate(f"{each.name} unrotated", make(method.name, **knobs, rotate=False)))
    return tuple(found)


@cache
def _readable() -> tuple[Candidate, ...]:
    """Every format that flags are printed for: those of open pull requests, too."""
    kvarn = ({**value, "tile": tile} for value in ({}, {"value_bits": 4}) for tile in (128, 64))
    unreleased = [make("oscar"), *(make("kvarn", **knobs) for knobs in kvarn)]
    return (*engine_formats(), *(Candidate(f"unreleased {at}", each) for at, each in enumerate(unreleased)))


def _switched(candidate: Candidate, given: dict[str, Any]) -> Candidate:
    """A candidate with what flags beside its name say of it. Raises SpecError."""
    method, more = candidate.method, {}
    if "compander" in type(method).model_fields and given["cca"] is not None:
        more = {"compander": _number(given["cca"])}
    if _turns_where_asked(method) and set(given["switches"]) >= _TURNS:
        more = {"rotate": True}
    own = method.model_dump(mode="json", exclude_defaults=True)
    return Candidate(candidate.name, make(method.name, **{**own, **more})) if more else candidate


def _turns_where_asked(method: Method) -> bool:
    """Whether it is turned by flags of its own, as ik_llama.cpp's formats are, not always."""
    field = type(method).model_fields.get("rotate")
    return field is not None and field.default is False


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise SpecError(f"-cca {excerpt(given)} is not allowed; give a number from 0 to 1.") from None


def _of_transformers(config: dict[str, str]) -> Lane:
    """The lane of a QuantizedCache, whose settings are the methods' knobs. Raises SpecError."""
    backend, axes = config["backend"].lower(), {config["axis_key"], config["axis_value"]}
    known = dict.fromkeys(each.method.name for each in engine_formats() if "transformers" in each.method.cache_types)
    if backend not in known:
        raise SpecError(f"transformers has no format {excerpt(config['backend'])} here; known: {', '.join(known)}.")
    if len(axes) > 1:
        raise SpecError(f"axis_key and axis_value differ: {' and '.join(sorted(axes))}; here both are one axis.")
    try:
        bits, axis, group, newest = (
            int(config[name]) for name in ("nbits", "axis_key", "q_group_size", "residual_length")
        )
    except ValueError as error:
        raise SpecError(f"These flags cannot be read: {error}.") from None
    method = make(backend, bits=bits, axis=axis, group_size=group, residual_length=newest)
    return LayerPlan.uniform(1, backend, backend).lane([Candidate(backend, method)])


def _engines(given: dict[str, Any], command: str) -> Iterator[str]:
    """Engines that the flags may be for: those that the text names, else all that have them. Raises SpecError where
    there is no flag of a cache."""
    rows = engines()
    named = [name for name, row in rows.items() if row.marks and re.search(row.marks, command, re.IGNORECASE)]
    if given["cq"]:
        yield "ExLlamaV3"
    if given["ctk"] or given["ctv"]:
        fork = _UNROTATED.search(command) or any(given[f"{flag}_{at}"] for flag in _CALLED for at in ("first", "last"))
        apart = [name for name, row in rows.items() if row.apart and "-ctk" in row.command]
        yield from apart[::-1] if fork or set(apart) & set(named) else apart
    if given["both"]:
        together = [name for name, row in rows.items() if row.marks and "{both}" in row.command]
        yield from [name for name in together if name in named] or together
    if not any(given[name] for name in ("cq", "ctk", "ctv", "both")):
        raise SpecError(f"{excerpt(command)} holds no flags of a KV cache; known: {KNOWN}.")


def _read(command: str) -> dict[str, Any]:
    """Flags of a KV cache by name; others are passed over. Raises SpecError."""
    given = scan(command)
    if given["cq"]:
        keys, _, values = given["cq"].partition(",")
        given |= {"ctk": keys, "ctv": values or keys}
    if (word := given["ollama"]) is not None:
        own = _of_front("Ollama", word.lower())
        given |= {"ctk": own, "ctv": own}
    if (bits := given["kv_bits"]) is not None:  # mlx_lm/models/cache.py, QuantizedKVCache: mx.quantize in groups of 64
        nearest = _NEAREST.format(bits, given["kv_group"] or 64)
        raise SpecError(f"mlx-lm's --kv-bits {bits}, a scale and a bias a group, is no format here. {nearest}")
    plain = given["dtype"] if given["generate"] in (None, "dynamic") else None
    if given["generate"] == "dynamic" or (plain and "from_pretrained" in command):  # code of transformers
        given["ctk"] = given["ctv"] = "bf16" if plain and plain.endswith("bfloat16") else "f16"
    if (policy := given["quant_policy"]) is not None:
        given["both"] = _of_front("LMDeploy", policy, _NEAREST.format(policy, "a head") if policy in ("4", "8") else "")
    return given


def _of_front(name: str, word: str, nearest: str = "") -> str:
    """The engine's word for a server's. Raises SpecError."""
    known = front_ends()[name].words
    if word not in known:
        raise SpecError(f"{name} has no format {excerpt(word)} here; known: {', '.join(known)}. {nearest}".rstrip())
    return known[word]


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
