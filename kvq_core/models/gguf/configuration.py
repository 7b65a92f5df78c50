"""A GGUF file's header as a transformers configuration; what is neither used nor known to be harmless is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvq_core.errors import ModelError, excerpt
from kvq_core.models.gguf.families import FAMILIES
from kvq_core.models.gguf.family import Family, FamilyFacts
from kvq_core.models.gguf.header import Header, TensorEntry
from kvq_core.models.gguf.scaling import rope_parameters

_SIZES = {  # behind "{architecture}.": numbers a file must give -> transformers' field
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_HEAD = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count")
_ROPE = (
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
_USED = {*_SIZES, *_HEAD, *_ROPE, "vocab_size"}
_HARMLESS = {  # how the file came to be, and of pictures
    "rope.scaling.finetuned",
    "mm.tokens_per_image",
}
_IF = {  # allowed with one value, with which they change nothing
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "tensor_data_layout": "Meta AI original pth",
    "use_parallel_residual": False,
}
_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # transformers' name of a token -> the file's
_ENDS = ("eos", "eot", "eom")  # tokens after which nothing more is generated


def check_architecture(header: Header) -> None:
    """Raises ModelError for what is not one of the architectures that are read, and for unknown keys of one."""
    kind = header.values.get("general.type", "model")
    if kind != "model":
        raise refusal(header, f"general.type is {excerpt(kind)}, not 'model'")
    name = header.architecture
    if (family := FAMILIES.get(name)) is None:
        raise refusal(header, f"its architecture is {excerpt(name)}; read are {', '.join(FAMILIES)}")
    allowed = {**_IF, **family.allowed}
    shared = set() if family.whole else {*_USED, family.epsilon[0]} | (_HARMLESS - family.allowed.keys())
    used = shared.union(family.keys)
    for key, value in header.values.items():
        prefix, _, rest = key.partition(".")
        if prefix == name and rest not in used and not (rest in allowed and value == allowed[rest]):
            raise refusal(
                header, f"{excerpt(key)} = {excerpt(value)} is not known here and may change what it computes"
            )


def configuration(header: Header, frequencies: np.ndarray | None) -> Any:
    """transformers' configuration of the file's model; ``frequencies`` are the numbers of its tensor of that name.

    Raises ModelError, naming the key, where the header lacks what it needs or says something impossible.
    """
    at, family = _lookup(header), FAMILIES[header.architecture]
    entries = {entry.name: entry for entry in header.entries}
    if family.whole is not None:
        return _made(header, family, entries, _whole_of(header, family, entries, frequencies))
    sizes = _sizes(header, at, family)
    heads, context = sizes["num_attention_heads"], sizes["max_position_embeddings"]
    head_dim, rotated = _head_dim(header, at, family, sizes["hidden_size"] // heads)
    kv_heads = _kv_heads(header, at("attention.head_count_kv", heads), family, sizes)
    _check_counts(header, entries, sizes, kv_heads)
    try:
        rope = rope_parameters(lambda key, default: _rope(header, key, default), rotated, context, frequencies)
    except ValueError as error:
        raise refusal(header, str(error)) from None
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    facts = FamilyFacts(at, entries, sizes["num_hidden_layers"], sizes["hidden_size"], heads, head_dim, rope)
    key, epsilon = family.epsilon
    if (small := _number(header, key, at(key, None))) < 0:
        raise refusal(header, f"{header.architecture}.{key} = {small:g} is below 0")
    told = {
        "num_key_value_heads": kv_heads,
        epsilon: small,
        "rope_parameters": rope,
        **({"head_dim": head_dim} if family.wide else {}),
    }
    return _made(header, family, entries, told | sizes | _own(header, family, facts))


def _made(header: Header, family: Family, entries: dict[str, TensorEntry], told: dict[str, Any]) -> Any:
    """The configuration of these fields, and of those that all architectures have alike."""
    from transformers import AutoConfig

    common = {
        "vocab_size": entries["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in entries,
        **{f"{field}_token_id": token_id(header, name) for field, name in _IDS.items()},
    }
    name = header.values.get("general.name", "")
    return AutoConfig.for_model(family.model_type, _model_name_or_path=name, **common, **told)


def _whole_of(
    header: Header, family: Family, entries: dict[str, TensorEntry], frequencies: np.ndarray | None
) -> dict[str, Any]:
    """Fields of an architecture that shares none of the others' rules."""
    assert family.whole is not None
    if (embedding := entries.get("token_embd.weight")) is None or len(embedding.shape) != 2:
        raise refusal(header, "it holds no tensor 'token_embd.weight' of two dimensions")
    try:
        told = family.whole(_lookup(header), entries, frequencies)
    except (ValueError, TypeError) as error:
        raise refusal(header, str(error)) from None
    counts = {key: told[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size")}
    for kv_heads in (told["num_key_value_heads"], told["num_global_key_value_heads"] or told["num_key_value_heads"]):
        _check_counts(header, entries, counts | {"num_attention_heads": told["num_attention_heads"]}, kv_heads)
    return told


def _sizes(header: Header, at: Callable[[str, Any], Any], family: Family) -> dict[str, int]:
    """The numbers a file must give, by transformers' fields."""
    asked = {key: field for key, field in _SIZES.items() if key not in family.absent or at(key, None) is not None}
    sizes = {field: _whole(header, key, at(key, None)) for key, field in asked.items()}
    if family.drafts is not None and (drafts := at(family.drafts, 0)):
        layers = sizes["num_hidden_layers"] - _whole(header, family.drafts, drafts)
        sizes["num_hidden_layers"] = _whole(header, "block_count", layers)
    return sizes


def _own(header: Header, family: Family, facts: FamilyFacts) -> dict[str, Any]:
    """Fields of the family. Raises ModelError for a key that is no number."""
    for key in family.keys:
        if isinstance(value := facts.key(key, 0), str if key in family.lists else str | list):
            raise refusal(header, f"{header.architecture}.{key} = {excerpt(value)} is not one number")
    try:
        return family.fields(facts)
    except ValueError as error:
        raise refusal(header, str(error)) from None


def _kv_heads(header: Header, held: Any, family: Family, sizes: dict[str, int]) -> int:
    """KV heads of the layers that have any."""
    if not family.kv_by_layer or not isinstance(held, list):
        return _whole(header, "attention.head_count_kv", held)
    if len(held) != sizes["num_hidden_layers"] or len(set(held) - {0}) != 1:
        raise refusal(header, f"{header.architecture}.attention.head_count_kv = {excerpt(held)} is not known here")
    return _whole(header, "attention.head_count_kv", max(held))


def end_ids(header: Header) -> list[int]:
    """Tokens that end an answer, the file's end-of-sequence token first."""
    found = [token_id(header, name) for name in _ENDS]
    return list(dict.fromkeys(id for id in found if id is not None))


def token_id(header: Header, name: str) -> int | None:
    """The id of a special token. Raises ModelError for one that the vocabulary does not have."""
    key = f"tokenizer.ggml.{name}_token_id"
    id = header.values.get(key)
    if id is None or (isinstance(id, int) and 0 <= id < len(header.values.get("tokenizer.ggml.tokens", ()))):
        return id
    raise refusal(header, f"{key} = {excerpt(id)} is no token of its vocabulary")


def refusal(header: Header, reason: str) -> ModelError:
    return ModelError(f"Model file {excerpt(header.path.name)} cannot be converted: {reason.rstrip('.')}.")


def _lookup(header: Header) -> Callable[[str, Any], Any]:
    return lambda key, default: header.values.get(f"{header.architecture}.{key}", default)


def _whole(header: Header, key: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
        return value
    told = "is missing" if value is None else f"= {excerpt(value)} is not one number above 0"
    raise refusal(header, f"{header.architecture}.{key} {told}")


def _number(header: Header, key: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    told = "is missing" if value is None else f"= {excerpt(value)} is not a number"
    raise refusal(header, f"{header.architecture}.{key} {told}")


def _rope(header: Header, key: str, default: Any) -> Any:
    """A value of RoPE: a name where the default is one, else a number."""
    value = header.values.get(f"{header.architecture}.rope.{key}", default)
    return value if isinstance(default, str) else _number(header, f"rope.{key}", value)


def _head_dim(header: Header, at: Callable[[str, Any], Any], family: Family, usual: int) -> tuple[int, int]:
    """Channels of a head, and those that are rotated. transformers' reader takes hidden / heads, whatever the file
    says."""
    found = {key: _whole(header, key, at(key, None)) for key in _HEAD[1:] if at(key, None) is not None}
    rotated = found.pop(_HEAD[-1], None) if family.partial else None
    head_dim = found.get("attention.key_length", found.get("rope.dimension_count", usual))
    for key, value in found.items():
        if value != head_dim:
            raise refusal(header, f"{header.architecture}.{key} is {value}, and a head has {head_dim} channels")
    if not family.wide and head_dim != usual:
        raise refusal(header, f"a head has {head_dim} channels, and models of this kind have hidden / heads, {usual}")
    rotated = head_dim if rotated is None else rotated
    if rotated < 2 or rotated % 2 or rotated > head_dim:
        raise refusal(header, f"{rotated} of {head_dim} channels of a head cannot be rotated in pairs")
    return head_dim, rotated


def _check_counts(header: Header, entries: dict[str, TensorEntry], sizes: dict[str, int], kv_heads: int) -> None:
    """What would make a model of no or of endless size: shapes in detail are compared when the model is made."""
    embedding = entries.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise refusal(header, "it holds no tensor 'token_embd.weight' of two dimensions")
    if sizes["num_hidden_layers"] > len(entries):
        raise refusal(header, f"it holds {len(entries)} tensors for {sizes['num_hidden_layers']} layers")
    largest = max(entry.numel for entry in entries.values())
    if max(sizes["hidden_size"], sizes.get("intermediate_size", 0), sizes["num_attention_heads"]) > largest:
        raise refusal(header, "its header asks for larger tensors than it holds")
    if sizes["num_attention_heads"] % kv_heads:
        raise refusal(header, f"{sizes['num_attention_heads']} query heads cannot share {kv_heads} KV heads")
