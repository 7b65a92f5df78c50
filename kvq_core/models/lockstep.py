"""The bridge into transformers: a named attention that hands every call to the engine.

No monkey patch: a context variable names the object that owns the caches during a forward pass, so that layers may drop
what they are not asked for. Models of attention alone run without a cache of transformers' own; what other layers keep
is in ``states``. transformers builds no mask for an attention it does not know, and none is needed: rows of one length,
causal within a call, and windows as the layer's kind says.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor, nn

from kvq_core.errors import ModelError
from kvq_core.models.scoring import Scoring

ATTENTION = "kvq_lockstep"
# what models hand to their attention that changes nothing here: nothing is dropped out of a model that does not learn,
# and the others are of no concern to an attention
HARMLESS = {"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits"}
APPLIED = {"sliding_window", "softcap", "s_aux"}  # what a layer's Scoring says


class ForeignAttention(ModelError):
    """A model's attention asks for what the engine does not apply."""


class Attend(Protocol):
    """Owner of the caches during a forward pass."""

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        """Store the new keys and values, attend, return the output.

        queries (rows, query_heads, tokens, head_dim), keys and values (rows, kv_heads, tokens, head_dim), all after
        RoPE -> (rows, tokens, query_heads, head_dim of the values). A layer whose scoring ``reads``
        those of an earlier one hands on what that one handed on in this pass, and nothing of it is stored again.
        """


_OWNER: ContextVar[tuple[Attend, Sequence[Scoring | None]] | None] = ContextVar("owner of the caches", default=None)


@contextmanager
def attending(attend: Attend, scoring: Sequence[Scoring | None]) -> Iterator[None]:
    """Within it, models of this thread hand their attention to ``attend``; ``scoring``: of their layers."""
    token = _OWNER.set((attend, scoring))
    try:
        yield
    finally:
        _OWNER.reset(token)


def is_attended() -> bool:
    """Whether somebody owns the caches of a forward pass in progress."""
    return _OWNER.get() is not None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls; ``scaling`` is what the layer's Scoring says, see ``survey``."""
    owner = _OWNER.get()
    if owner is None:
        raise ModelError("This model is held by KVQ Explorer's engine; call set_attn_implementation('sdpa') to use it.")
    check_asked(attention_mask, kwargs)
    attend, scoring = owner
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    how = scoring[layer]
    assert how is not None, "a layer that the survey did not see attends"
    return attend(layer, query, key, value, how).to(query).contiguous(), None


def check_asked(mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    """Raises ForeignAttention for anything a model asks of its attention that is not known to change nothing, or
    applied."""
    if mask is not None:
        raise ForeignAttention("its attention uses a mask of its own, which the engine does not apply")
    known = HARMLESS | APPLIED
    foreign = sorted(name for name, value in kwargs.items() if value is not None and name not in known)
    if foreign:
        raise ForeignAttention(f"its attention uses {', '.join(foreign)}, which the engine does not apply")


def register_attention() -> None:
    """Make the attention known to transformers under its own name; existing ones stay as they are."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)
