"""A cache that transformers' ``generate`` can be given, whose layers attend by themselves.

The cache's ``update`` hands the attention a ticket instead of keys and values; the attention registered under PACKED
lets the ticket's layer store the new tokens and attend, is the engine's own for comparisons on the same model, and
transformers' own sdpa for every other cache. Nothing is patched.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvq_core.errors import ModelError
from kvq_core.models.lockstep import attention, check_asked, is_attended
from kvq_core.models.scoring import Scoring

PACKED = "kvq_packed"


class Attends(Protocol):
    """What a layer of the cache must be able to do."""

    @property
    def tokens(self) -> int: ...

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor: ...


class Ticket(NamedTuple):
    """New tokens on their way to the layer that keeps them."""

    layer: Attends
    keys: Tensor
    values: Tensor
    how: Scoring


class TicketLayer(CacheLayerMixin):
    """A layer of the cache as transformers sees it."""

    is_sliding = False

    def __init__(self, layer: Attends, how: Scoring):
        super().__init__()
        self.layer, self.how = layer, how

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.is_initialized = True
        ticket = Ticket(self.layer, key_states, value_states, self.how)
        return ticket, ticket

    def get_seq_length(self) -> int:
        return self.layer.tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.layer.tokens + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        raise ModelError("A packed cache is fitted on one prompt; make a new one for another.")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise ModelError("A packed cache cannot be reordered: beam search is not supported; use num_beams = 1.")

    def crop(self, *args: Any) -> None:
        raise ModelError(
            "A packed cache cannot be cut back: assisted generation is not supported; leave out assistant_model and "
            "prompt_lookup_num_tokens."
        )

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise ModelError("The rows of a packed cache cannot be repeated; repeat the prompts instead.")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise ModelError("Rows of a packed cache cannot be chosen; give it the prompts wanted.")


class TicketCache(Cache):
    """Layers that attend by themselves, as ``past_key_values``."""

    def __init__(self, layers: list[Attends], scoring: Sequence[Scoring | None]):
        """``scoring`` of each of the layers, all of which attend."""
        held = zip(layers, scoring, strict=True)
        super().__init__(layers=[TicketLayer(layer, how) for layer, how in held if how is not None])


def register_packed() -> None:
    """Make the attention and its mask known to transformers under their own name."""
    AttentionInterface.register(PACKED, _attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if is_attended():  # from here on as without this cache
        return attention(module, query, key, value, None, scaling=scaling, **kwargs)
    if not isinstance(key, Ticket):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    check_asked(None, kwargs)
    if attention_mask is not None and not key.how.windowed and not _causal(attention_mask):
        raise ModelError("A packed cache has no padding; give prompts of one length, or one prompt at a time.")
    out = key.layer.attend(query, key.keys, key.values, key.how)
    return out.to(query.dtype).contiguous(), None


def _causal(mask: Tensor) -> bool:
    """Whether a bool mask (batch, 1, n, tokens) hides nothing but the future."""
    n, tokens = mask.shape[-2:]
    plain = torch.ones(n, tokens, dtype=torch.bool, device=mask.device).tril(tokens - n)
    return mask.dtype == torch.bool and bool((mask == plain).all())
