"""The kinds of a model's layers, as far as they decide what its cache takes, read from its configuration."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvq_core.errors import ModelError, excerpt
from kvq_core.shape import LayerKind, ModelShape
from kvq_core.shipped import shipped
from kvq_core.sizing.states import state_of

SHIPPED = shipped("sizing")
Config = Mapping[str, Any]
KV_HEADS = (  # names of one figure, a list where layers differ
    *("num_key_value_heads_per_layer", "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    "multi_query_group_num",
)
_OF_KV_HEADS = re.compile(r"(kv|key_value)_(n_)?heads|head_kv")
_READ = {*KV_HEADS, "swa_num_key_value_heads", "num_global_key_value_heads", "indexer_kv_heads"}
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")  # of models that see or hear as well


@cache
def families() -> dict[str, Any]:
    """What is known of families of models: data of presets."""
    return tomllib.loads((SHIPPED / "families.toml").read_text(encoding="utf-8"))


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. Raises ModelError where it is none."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"Model {excerpt(str(folder))}: its config.json cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise ModelError(f"Model {excerpt(str(folder))}: its config.json is no object.")
    return found


def text_config(config: Config) -> Config:
    """The part of a configuration that is of its language model."""
    inner = next((config[name] for name in _INNER if isinstance(config.get(name), dict)), None)
    return config if inner is None else text_config({**inner, "torch_dtype": dtype_of(inner) or dtype_of(config)})


def dtype_of(config: Config) -> str | None:
    found = config.get("torch_dtype") or config.get("dtype")
    return str(found).removeprefix("torch.") if found else None


def shape_of(config: Config) -> ModelShape:
    """What a configuration says of the cache. Raises ModelError with the field that is missing, or not known here."""
    whole = config
    config = text_config(config)
    try:
        kinds = _kinds(config)
        layers = _sharing(config, tuple(_layer(config, kind, number) for number, kind in enumerate(kinds)))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"This configuration does not say what its cache takes: {said}.") from None
    return ModelShape.of_layers(
        layers,
        config.get("num_attention_heads") or config.get("n_head") or 0,
        config.get("max_position_embeddings") or config.get("n_positions") or 0,
        architecture=str(config.get("model_type") or whole.get("model_type") or "unknown"),
        dtype=dtype_of(config) or "bfloat16",
        stated=() if dtype_of(config) else ("dtype of the weights (taken: bfloat16)",),
    )


def _kinds(config: Config) -> list[str]:
    """Of every layer."""
    data, family = families(), config.get("model_type", "")
    names = {name: kind for kind, all in data["kinds"].items() for name in all}
    for field in data["lists"]["fields"]:
        if config.get(field):
            return _named(config, field, names)
    count = int(config["num_hidden_layers"])
    if family in data["all"]:
        return [data["all"][family]] * count
    if family in data["listed"] and config.get(data["listed"][family]["field"]) is not None:
        rule = data["listed"][family]
        return ["full" if layer in config[rule["field"]] else rule["others"] for layer in range(count)]
    if isinstance(config.get("attn_layer_period"), int):
        period, offset = config["attn_layer_period"], config.get("attn_layer_offset", 0)
        return ["full" if layer % period == offset else "state" for layer in range(count)]
    if isinstance(config.get("linear_attn_config"), dict):  # layers are counted from 1 there
        full = config["linear_attn_config"]["full_attn_layers"]
        return ["full" if layer + 1 in full else "state" for layer in range(count)]
    if family in data["period"]:
        return _periodic(config, data["period"][family], count)
    return _uniform(config, data["windowed"]["families"], count)


def _named(config: Config, field: str, names: Mapping[str, str]) -> list[str]:
    given = [str(name) for name in config[field]]
    count = config.get("num_hidden_layers") or len(given)
    unknown = sorted({name for name in given if name not in names})
    if unknown:
        raise ValueError(f"{field} has layers of kind {', '.join(map(excerpt, unknown))}, which are not known here")
    return [names[given[layer % len(given)]] for layer in range(count)]


def _periodic(config: Config, rule: Mapping[str, Any], count: int) -> list[str]:
    every = next((config[name] for name in rule.get("field", ()) if config.get(name)), rule["every"])
    if rule["others"] == "chunked" and not config.get("attention_chunk_size"):
        return ["full"] * count
    return ["full" if (layer + 1) % every == 0 else rule["others"] for layer in range(count)]


def _uniform(config: Config, windowed: Iterable[str], count: int) -> list[str]:
    window, family = config.get("sliding_window"), str(config.get("model_type"))
    if window and (family in windowed or config.get("use_sliding_window")):
        first = config.get("max_window_layers", 0) if config.get("use_sliding_window") else 0
        return ["full" if layer < first else "sliding" for layer in range(count)]
    return ["full"] * count


def _layer(config: Config, kind: str, number: int) -> LayerKind:
    config = _own(config, number)
    if config.get("no_op") or config.get("replace_with_linear"):
        kind = "none"
    state = state_of(config) if kind in ("state", "both") else {}
    if kind in ("state", "none"):
        return LayerKind(kind="none", **state)
    if config.get("kv_lora_rank"):
        rank, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
        index = int(config.get("index_head_dim") or 0)
        return LayerKind(kind="latent", kv_heads=1, key_dim=rope, value_dim=rank, index_dim=index)
    window = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}.get(kind)
    heads, key_dim, value_dim = _heads(config, windowed=kind == "sliding")
    return LayerKind(
        kind="full" if kind == "both" else kind,  # type: ignore[arg-type]
        window=None if window is None else int(config[window]),
        kv_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        **state,
    )


def _own(config: Config, number: int) -> Config:
    """What a configuration says of one layer: families list figures by layer, and searched ones (NAS) whole blocks."""
    blocks = config.get("block_configs")
    block = blocks[number]["attention"] if blocks else {}
    listed = {name: config[name][number] for name in KV_HEADS if isinstance(config.get(name), list)}
    own = {**config, **listed, **(config.get("per_layer_config") or {}).get(str(number), {}), **block}
    if group := block.get("n_heads_in_group"):
        own["num_key_value_heads"] = int(config["num_attention_heads"]) // int(group)
    return own


def _kv_heads(config: Config, heads: int) -> int:
    """By whichever name a configuration gives them. Raises ValueError where it gives them by a name that is not read
    here, or gives none and its family is not known to have as many as query heads."""
    if unread := sorted(name for name in config if _OF_KV_HEADS.search(name) and name not in _READ):
        raise ValueError(f"{unread[0]} is not known here")
    if config.get("multi_query") and not config.get("new_decoder_architecture"):  # GPTs and Falcon
        return 1
    given = [int(config[name]) for name in KV_HEADS if config.get(name)]
    if not given and config.get("model_type") not in families()["multi_head"]["families"]:
        raise ValueError("it lacks num_key_value_heads, and its family is not known to have as many as query heads")
    return given[0] if given else heads


def _heads(config: Config, windowed: bool) -> tuple[int, int, int]:
    """KV heads and channels of a key and of a value of a layer, by whether it has a window: families differ in it."""
    heads = int(config.get("num_attention_heads") or config["n_head"])
    hidden = int(config.get("hidden_size") or config["n_embd"])
    kv = _kv_heads(config, heads)
    key = int(config.get("attention_head_dim") or config.get("head_dim") or hidden // heads)
    value = int(config.get("v_head_dim") or key)
    if windowed:  # MiMo-V2
        times = families()["windowed_kv_heads"].get(config.get("model_type"), 1)
        kv, key = int(config.get("swa_num_key_value_heads") or times * kv), int(config.get("swa_head_dim") or key)
        return kv, key, int(config.get("swa_v_head_dim") or (value if config.get("v_head_dim") else key))
    if config.get("global_head_dim"):  # Gemma 4
        key = value = int(config["global_head_dim"])
        if config.get("attention_k_eq_v", True):
            kv = int(config.get("num_global_key_value_heads") or kv)
    return kv, key, value


def _sharing(config: Config, layers: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """The last layers of some models hold no keys and values: each reads those of the last layer before them that is of
    its own kind (Gemma 3n, Gemma 4). Raises ValueError where there is none."""
    own = len(layers) - int(config.get("num_kv_shared_layers") or 0)
    last = {kind.kind: layer for layer, kind in enumerate(layers[:own])}
    if lone := next((kind.kind for kind in layers[own:] if kind.kind not in last), None):
        raise ValueError(f"num_kv_shared_layers leaves no {lone} layer that keeps what {lone} layers read")
    return (*layers[:own], *(LayerKind(kind="none", reads=last[kind.kind]) for kind in layers[own:]))
