"""What layers that are no attention keep of each row: states of a convolution, of a state space, of linear attention.

transformers' own layers hold and update them. Layers that attend hand their new keys and values through unchanged:
these belong to whoever owns the caches.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)


class _Through:
    """A layer whose keys and values lie elsewhere; counts the tokens that went through."""

    is_compileable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self) -> None:
        self.tokens = 0

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.tokens += keys.shape[-2]
        return keys, values

    def get_seq_length(self) -> int:
        return self.tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + query_length, 0

    def get_max_length(self) -> int:
        return -1


class _StateAndThrough(LinearAttentionLayer):
    """A layer that attends and keeps a state."""

    is_sliding = False

    def __init__(self, states: int):
        super().__init__(number_of_states=states)
        self.through = _Through()

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.through.update(keys, values)

    def get_seq_length(self) -> int:
        return self.through.tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.through.get_mask_sizes(query_length)


class States(Cache):
    """Of the rows of a batch; the model writes them with every forward pass."""

    @classmethod
    def empty(cls, config: Any) -> Self:
        return cls(layers=[_layer(held) for held in DynamicCache(config=config).layers])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that entered, whichever layer is asked."""
        return max((layer.get_seq_length() for layer in self.layers if hasattr(layer, "get_seq_length")), default=0)

    def of_rows(self, rows: Sequence[int]) -> "States":
        """A copy for the rows given, some of them more than once."""
        return States(layers=[_of_rows([layer], [rows]) for layer in self.layers])

    @staticmethod
    def join(every: Sequence["States"]) -> "States":
        """The rows of several, one after the other, on the devices of the first."""
        stacks = zip(*(states.layers for states in every), strict=True)
        return States(layers=[_of_rows(layers, [None] * len(layers)) for layers in stacks])

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return sum(x.numel() * x.element_size() for layer in self.layers for _, _, x in _tensors(layer))


def _layer(held: Any) -> Any:
    if isinstance(held, DummyLayer):
        return held
    if not isinstance(held, LinearAttentionCacheLayerMixin):
        return _Through()
    return _StateAndThrough(held.number_of_states) if hasattr(held, "update") else held


def _tensors(layer: Any) -> list[tuple[str, int, Tensor]]:
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return []
    both = (("conv_states", layer.conv_states), ("recurrent_states", layer.recurrent_states))
    return [(name, at, x) for name, held in both for at, x in held.items() if x is not None]


def _of_rows(layers: Sequence[Any], rows: Sequence[Sequence[int] | None]) -> Any:
    """One layer of some rows of several, in new tensors: what is shared is written by one alone."""
    new = copy(layers[0])
    if isinstance(new, _StateAndThrough):
        new.through = copy(new.through)
    if not isinstance(new, LinearAttentionCacheLayerMixin):
        return new
    for name in ("conv_states", "recurrent_states"):
        setattr(new, name, dict(getattr(new, name)))
    for name, at, _ in _tensors(layers[0]):
        parts = (getattr(layer, name)[at] for layer in layers)
        taken = [
            x if own is None else x[torch.tensor(own, device=x.device)] for x, own in zip(parts, rows, strict=True)
        ]
        getattr(new, name)[at] = torch.cat([x.to(taken[0].device) for x in taken])
    return new
