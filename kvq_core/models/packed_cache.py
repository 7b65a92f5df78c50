"""A cache that transformers' ``generate`` can be given, whose layers attend by themselves.

The cache's ``update`` hands the attention a ticket instead of keys and values; the attention registered under PACKED
lets the ticket's layer store the new tokens and attend, is the engine's own for comparisons on the same model, and
transformers' own sdpa for every other cache. Nothing is patched.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from kvq_kernels import Store, counting
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

    @property
    def nbytes(self) -> int: ...

    @property
    def whole(self) -> list[Store]:
        """Keys and values of a layer whose every step is the same launches; none where it is not."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor: ...

    def mark(self) -> list[Hashable]:
        """What ``rewind`` needs to forget what enters from now on."""

    def rewind(self, marks: Sequence[Hashable]) -> None:
        """Be as when the marks were made."""


class Batched(Attends, Protocol):
    """One for rows of one length, which can be taken apart while it is empty."""

    def apart(self, padding: Sequence[int]) -> Attends: ...


class EnteringTokens(NamedTuple):
    """New tokens on their way to the layer that keeps them."""

    layer: "TicketLayer"
    keys: Tensor
    values: Tensor
    how: Scoring


class LastCall(NamedTuple):
    """The tokens that entered last, and what the layer was before."""

    marks: list[Hashable]
    queries: Tensor
    keys: Tensor
    values: Tensor


class TicketLayer(CacheLayerMixin):
    """A layer of the cache as transformers sees it."""

    is_sliding = False

    def __init__(self, layer: Batched, how: Scoring):
        super().__init__()
        self.layer: Attends = layer
        self.empty, self.how = layer, how
        self.padding: list[int] = []  # before each row's prompt, where a batch has any
        self.record_past, self.last = False, cast("LastCall | None", None)
        self.is_croppable = False  # what assisted generation asks before it begins, from transformers 5.24 on

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.is_initialized = True
        ticket = EnteringTokens(self, key_states, value_states, self.how)
        return ticket, ticket

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, padding: list[int]) -> Tensor:
        """Store new tokens and attend; ``padding``: tokens before each row's own that nothing may see."""
        if any(padding) and not self.layer.tokens:
            self.layer, self.padding = self.empty.apart(padding), padding
        if any(padding) and padding != self.padding:
            raise ModelError("A packed cache hides padding before the prompt, and nothing that has entered already.")
        self.last = LastCall(self.layer.mark(), queries, keys, values) if self.record_past else None
        return self.layer.attend(queries, keys, values, self.how)

    def activate_past_recording(self) -> None:
        """From the next call on, keep what is needed to cut it back."""
        self.record_past = self.is_croppable = True

    def crop(self, tokens: int) -> None:
        """Remove -``tokens`` of the last call's tokens, or all but ``tokens`` of the cache, as older versions ask. What
        stays enters again, so that nothing is left of the others, not even in what was fitted on a prompt."""
        out = -tokens if tokens <= 0 else max(0, self.layer.tokens - tokens)
        if not out:
            return
        most = 0 if self.last is None else self.last.keys.shape[-2]
        if self.last is None or out > most:
            raise ModelError(
                f"A packed cache can be cut back by the tokens of its last call, once activate_past_recording() has "
                f"been called: {out} to be removed, {most} kept for it."
            )
        marks, *entered = self.last
        self.layer.rewind(marks)
        if out < most:
            self.last = None
            kept = [x[..., : most - out, :] for x in entered]
            self.attend(kept[0], kept[1], kept[2], self.padding if not marks else [])

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

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise ModelError("The rows of a packed cache cannot be repeated; repeat the prompts instead.")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise ModelError("Rows of a packed cache cannot be chosen; give it the prompts wanted.")


class TicketCache(Cache):
    """Layers that attend by themselves, as a model's cache."""

    def __init__(self, layers: list[Batched], scoring: Sequence[Scoring | None]):
        """``scoring`` of each of the layers, all of which attend."""
        held = zip(layers, scoring, strict=True)
        super().__init__(layers=[TicketLayer(layer, how) for layer, how in held if how is not None])

    @property
    def held(self) -> list[Attends]:
        """What its layers hold."""
        return [each.layer for each in self.layers if isinstance(each, TicketLayer)]

    @property
    def plain(self) -> bool:
        """Whether all layers are softmax attention over all keys, and nothing else."""
        return all(each.how.plain for each in self.layers if isinstance(each, TicketLayer))

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens held, from the tensors."""
        return sum(layer.nbytes for layer in self.held)

    def activate_past_recording(self) -> None:
        """Make it possible to cut the last call back, as assisted generation does."""
        for each in self.layers:
            if isinstance(each, TicketLayer):
                each.activate_past_recording()


def register_packed() -> None:
    """Make the attention and its mask known to transformers under their own name."""
    AttentionInterface.register(PACKED, _attention)
    AttentionMaskInterface.register(PACKED, _mask)


def _mask(*given: Any, **kwargs: Any) -> Tensor | None:
    """None while a step is captured, which can look at no mask: padding was left out when the prompt entered, and one
    token a row attends to all that is held."""
    return sdpa_mask(*given, **kwargs) if counting() else None


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
    if not isinstance(key, EnteringTokens):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if kwargs.pop("output_attentions", None):
        raise ModelError("A packed cache gives no attention weights; leave out output_attentions.")
    check_asked(None, kwargs)
    padding = [] if attention_mask is None else _padding(attention_mask, key)
    out = key.layer.attend(query, key.keys, key.values, padding)
    return out.to(query.dtype).contiguous(), None


def _seen(mask: Tensor) -> Tensor:
    """What some token sees of a mask (batch, n, tokens); transformers may let padding see all, the future too."""
    n, tokens = mask.shape[-2:]
    future = torch.ones(n, tokens, dtype=torch.bool, device=mask.device).triu(tokens - n + 1)
    padding = (mask & future).any(-1)
    return (mask & ~padding[..., None]).any(-2)


def _padding(mask: Tensor, ticket: EnteringTokens) -> list[int]:
    """Tokens of padding before each row of a bool mask (batch, 1, n, tokens).

    Raises ModelError where it hides anything else from a token than the future, what its window has left behind and
    padding on the left."""
    n, tokens = mask.shape[-2:]
    place = torch.arange(tokens, device=mask.device)
    hidden = ticket.how.newest_behind(n, tokens, mask.device)
    pads = tokens - _seen(mask[:, 0]).sum(-1)
    if hidden is not None and ticket.layer.get_seq_length():  # what a window hides may be padding or not
        pads = torch.tensor(ticket.layer.padding or [0] * len(mask), device=mask.device)
    real = place >= pads[:, None]
    expected = torch.ones(n, tokens, dtype=torch.bool, device=mask.device).tril(tokens - n) & real[:, None, :]
    if hidden is not None:
        expected &= ~hidden
    differs = (mask[:, 0] != expected) & real[:, -n:, None]  # what padding sees is read by nobody
    if mask.dtype != torch.bool or bool(differs.any()):
        raise ModelError(
            "A packed cache reads prompts padded on the left, each token all before it; mask nothing else."
        )
    return pads.tolist()
