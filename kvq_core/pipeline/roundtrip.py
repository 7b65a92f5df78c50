"""One method on given tensors, without a model: encode, decode, count."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvq_core.codecs.stream import Stream
from kvq_core.errors import SpecError
from kvq_core.methods import Method, ModelShape, Prompt, Window
from kvq_core.models.rope import Rope


@dataclass(frozen=True)
class Roundtrip:
    """What attention would read, and what the cache holds.

    keys, values float32 (kv_heads, tokens, head_dim), keys after RoPE; ``nbytes`` by part, from the tensors held;
    ``key_bits``, ``value_bits`` stored bits per element, metadata included.
    """

    keys: Tensor
    values: Tensor
    nbytes: dict[str, int]
    key_bits: float
    value_bits: float


def roundtrip(
    method: Method,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None = None,
    rope: tuple[Tensor, Tensor] | None = None,
    windows: bool = False,
    metadata: Literal["float32", "float16"] = "float16",
) -> Roundtrip:
    """Store keys and values under a method and read them back.

    keys, values (kv_heads, tokens, head_dim) float32, keys after RoPE; queries (query_heads, tokens, head_dim) after
    RoPE; rope (cos, sin), each (tokens, head_dim), tables of the rotate-half convention. ``windows`` False quantizes
    every token of what the method quantizes at all, True keeps the method's full-precision windows. ``metadata``: dtype
    of scales and zero-points, float16 as in lanes of a run; float32 takes more bits. Raises SpecError where shapes do
    not fit or the method needs queries or RoPE that are missing.
    """
    _check(method, keys, values, queries, rope)
    tables = Rope.of(rope[0].float(), rope[1].float(), keys.shape[-1]) if rope is not None else None
    pre = method.key_space == "pre" and method.quantizes
    stored = keys.float()[None]
    if pre:
        assert tables is not None
        stored = tables.unrotate(stored, 0)
    dtype = torch.float32 if metadata == "float32" else torch.float16
    asked = queries.float()[None] if queries is not None and method.needs_queries else None
    fitted = method.fit(Prompt(stored, values.float()[None], asked, dtype, rotated=keys.float()[None]))
    kept = [w if windows or w.step is None else Window(step=1) for w in method.windows()]
    key = Stream.of_prompt(stored, kept[0], fitted.key)
    value = Stream.of_prompt(values.float()[None], kept[1], fitted.value)
    read = key.decode()
    if pre:
        assert tables is not None
        read = tables.rotate(read, 0)
    sizes = {"key": key.nbytes(), "value": value.nbytes()}
    nbytes = {f"{kind}_{name}": n for kind, own in sizes.items() for name, n in own.items()}
    bits = {kind: 8 * sum(own.values()) / keys.numel() for kind, own in sizes.items()}
    if host := key.host_bytes + value.host_bytes:
        nbytes["host_copy"] = host  # beside the cache, in no bits
    return Roundtrip(read[0], value.decode()[0], nbytes, bits["key"], bits["value"])


def _check(
    method: Method, keys: Tensor, values: Tensor, queries: Tensor | None, rope: tuple[Tensor, Tensor] | None
) -> None:
    if keys.dim() != 3 or keys.shape != values.shape or not keys.numel():
        raise SpecError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} must both be (kv_heads, tokens, head_dim)."
        )
    kv_heads, tokens, dim = keys.shape
    if queries is None and method.needs_queries:
        raise SpecError(f"{method.name} needs queries (query_heads, tokens, head_dim), after RoPE.")
    heads = kv_heads if queries is None else queries.shape[0]
    if queries is not None and (queries.dim() != 3 or queries.shape[-1] != dim or heads % kv_heads):
        raise SpecError(
            f"queries {tuple(queries.shape)} must be (query_heads, tokens, {dim}), heads a multiple of {kv_heads}."
        )
    if rope is None and method.key_space == "pre" and method.quantizes:
        raise SpecError(f"{method.name} stores keys before RoPE and needs rope = (cos, sin), each ({tokens}, {dim}).")
    if rope is not None and any(table.shape != (tokens, dim) for table in rope):
        raise SpecError(f"rope tables {[tuple(t.shape) for t in rope]} must both be ({tokens}, {dim}).")
    reason = method.why_not(ModelShape(1, heads, kv_heads, dim, tokens))
    if reason:
        raise SpecError(f"{method.name}: {reason}.")
