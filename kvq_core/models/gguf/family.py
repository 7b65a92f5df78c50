"""One architecture of GGUF files: keys of its header, names of its tensors, its configuration. See ``families``."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvq_core.models.gguf.header import TensorEntry

Key = Callable[[str, Any], Any]  # a key behind "{architecture}.", and what it is where the file lacks it
Fields = dict[str, Any]  # of transformers' configuration
BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class FamilyFacts:
    """What a file of any architecture says: ``key`` looks up the others; ``tensors`` are the names it holds, ``rope``
    transformers' rope_parameters."""

    key: Key
    tensors: Collection[str]
    layers: int
    hidden: int
    heads: int
    head_dim: int
    rope: Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """One architecture. ``keys``: those of its own; ``allowed``: keys that may have one value, with which they change
    nothing; ``epsilon``: key of the norms' epsilon and transformers' field; ``fields``: of the configuration;
    ``halves``: whether llama.cpp keeps rows of queries and keys in another order; ``one_more``: whether it adds one to
    the weights of norms; ``partial``: whether fewer channels may be rotated than a head has; ``wide``: whether a head
    may have other channels than hidden_size / heads; ``kv_by_layer``: whether it counts KV heads for every layer;
    ``expert``: what transformers makes of one expert's matrices, or biases, of the file: gate and up, or down alone;
    ``lists``: those of ``keys`` that hold several numbers; ``absent``: numbers that a file need not give; ``names``:
    ends of tensors' names, in the file and in transformers; ``undo``: what else is done to tensors; ``drafts``: the key
    of layers at the end that are counted, and guess tokens ahead, which nothing here does; ``unused``: whether a tensor
    is left out; ``whole``: all fields by keys, tensors and RoPE's factors, where what others have in common does not
    hold, and then ``keys`` are all there are."""

    model_type: str
    keys: tuple[str, ...] = ()
    allowed: Mapping[str, Any] = field(default_factory=dict)
    epsilon: tuple[str, str] = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
    fields: Callable[[FamilyFacts], Fields] = lambda facts: {}
    halves: bool = False
    one_more: bool = False
    partial: bool = False
    wide: bool = True
    kv_by_layer: bool = False
    expert: Callable[[Sequence[np.ndarray]], np.ndarray] | None = None
    lists: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    undo: Callable[[str, np.ndarray, Any], np.ndarray] | None = None
    drafts: str | None = None
    unused: Callable[[str, Any], bool] = lambda name, config: False
    whole: Callable[[Key, Mapping[str, TensorEntry], np.ndarray | None], Fields] | None = None

    def weights(self, name: str, held: np.ndarray, config: Any) -> np.ndarray:
        """A tensor of the file as transformers has it."""
        if self.undo is not None:
            held = self.undo(name, held, config)
        if self.halves and name.endswith((".attn_q.weight", ".attn_k.weight")):
            heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
            pairs = held.reshape(heads, held.shape[0] // heads // 2, 2, *held.shape[1:])
            return pairs.swapaxes(1, 2).reshape(held.shape)
        return held - 1 if self.one_more and name.endswith("norm.weight") else held


def block_of(name: str) -> int | None:
    """The layer a tensor of a file belongs to."""
    found = BLOCK.match(name)
    return None if found is None else int(found[1])
