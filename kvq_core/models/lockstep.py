"""The bridge into transformers: a named attention that hands every call to the engine.

No cache object and no monkey patch: models run with ``use_cache=False``, and the keyword ``kvq`` travels through
``forward`` down to the attention function, where it is the object that owns the caches. transformers builds no mask
for an attention it does not know, and none is needed: rows of one length, causal within a call.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kvq_core.errors import ModelError

ATTENTION = "kvq_lockstep"
# what models hand to their attention that changes nothing here: nothing is dropped out of a model that does not learn,
# a window is the longest context that is taken (support.window_of), and the others are of no concern to an attention
HARMLESS = {"dropout", "sliding_window", "position_ids", "use_cache", "output_attentions", "output_router_logits"}


class ForeignAttention(ModelError):
    """A model's attention asks for what the engine does not apply."""


class Attend(Protocol):
    """Owner of the caches during a forward pass."""

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Store the new keys and values, attend, return the output.

        queries (rows, query_heads, tokens, head_dim), keys and values (rows, kv_heads, tokens, head_dim), all after
        RoPE -> (rows, tokens, query_heads, head_dim).
        """


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    kvq: Attend | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if kvq is None:
        raise ModelError("This model is held by KVQ Explorer's engine; call set_attn_implementation('sdpa') to use it.")
    if attention_mask is not None:
        raise ForeignAttention("its attention uses a mask of its own, which the engine does not apply")
    check_asked(kwargs)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return kvq(module.layer_idx, query, key, value, scaling).to(query.dtype).contiguous(), None  # type: ignore[arg-type]


def check_asked(kwargs: dict[str, Any]) -> None:
    """Raises ForeignAttention for anything a model asks of its attention that is not known to change nothing."""
    foreign = sorted(name for name, value in kwargs.items() if value is not None and name not in HARMLESS)
    if foreign:
        raise ForeignAttention(f"its attention uses {', '.join(foreign)}, which the engine does not apply")


def register() -> None:
    """Make the attention known to transformers under its own name; existing ones stay as they are."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Exact attention of the last tokens over all: queries (rows, query_heads, n, head_dim) are the last n of keys.

    Returns (rows, n, query_heads, head_dim).
    """
    n, total = queries.shape[-2], keys.shape[-2]
    groups = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    mask = None
    if n < total:
        mask = torch.ones(n, total, dtype=torch.bool, device=queries.device).tril(total - n)
    out = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None and n > 1, scale=scaling
    )
    return out.transpose(1, 2)
