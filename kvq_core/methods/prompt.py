"""What the shared prefill gives a method to be fitted on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvq_core.shape import ModelRef


@dataclass(frozen=True)
class Prompt:
    """What the shared prefill gives a method: the tensors of the layers its lane quantizes.

    keys, values (layers, kv_heads, tokens, head_dim) float32, keys in the method's own space; queries
    (layers, query_heads, tokens, head_dim) float32 after RoPE, or None where the method did not ask for them.
    ``metadata`` is the dtype of scales and zero-points. ``model`` and ``layers``, the tensors' layers in it, are known
    inside a run; tensors on their own belong to no model. ``keys`` of a lane that centres them are those less the
    constant, as the codec sees them; ``rotated``: the true keys after RoPE, whatever the space. Where a lane rotates,
    all of these are turned; where it folds scales, keys are divided by them and queries multiplied. ``scaling``: what
    q.k is multiplied with, by layer; 1/sqrt(head_dim) where it is not given. ``pairs`` (layers, head_dim): which RoPE
    pair each channel is of; None where that is not known.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor | None
    metadata: torch.dtype = torch.float16
    gram: Tensor | None = None  # of the queries, where it is known already
    model: ModelRef | None = None
    layers: tuple[int, ...] = ()
    rotated: Tensor | None = None
    scaling: tuple[float, ...] = ()
    pairs: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scaling", self.scaling or (self.keys.shape[-1] ** -0.5,) * len(self.keys))

    @classmethod
    def join(cls, prompts: Sequence["Prompt"]) -> "Prompt":
        """One prompt of all layers, on the first one's device, for what a method decides over them."""
        first, *others = prompts
        if not others:
            return first

        def whole(name: str) -> Any:
            parts = [getattr(prompt, name) for prompt in prompts]
            return None if parts[0] is None else torch.cat([part.to(first.keys.device) for part in parts])

        tensors = {name: whole(name) for name in ("keys", "values", "queries", "gram", "rotated", "pairs")}
        layers, scaling = (sum((getattr(prompt, name) for prompt in prompts), ()) for name in ("layers", "scaling"))
        return replace(first, **tensors, layers=layers, scaling=scaling)

    def query_gram(self) -> Tensor:
        """QᵀQ of the stacked queries, float64 (layers, kv_heads, head_dim, head_dim); computed once a run."""
        assert self.queries is not None
        return query_gram(self.queries, self.keys.shape[1]) if self.gram is None else self.gram


def stack_queries(queries: Tensor, kv_heads: int) -> Tensor:
    """(layers, query_heads, n, head_dim) -> (layers, kv_heads, groups * n, head_dim)."""
    layers, heads, n, dim = queries.shape
    return queries.reshape(layers, kv_heads, heads // kv_heads * n, dim)


def query_gram(queries: Tensor, kv_heads: int) -> Tensor:
    """QᵀQ per KV head, float64 (layers, kv_heads, head_dim, head_dim), layer by layer: squaring squares the condition
    number, and a float64 copy is larger than the queries."""
    stacked = stack_queries(queries, kv_heads)
    return torch.stack([q.transpose(-1, -2) @ q for q in (layer.double() for layer in stacked)])
