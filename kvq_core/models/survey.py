"""Which layers of a model attend, and how: one token sent through an empty twin of it.

The twin has shapes and no numbers (torch's meta device), so nothing is computed: on machines that lend their GPU for
one call at a time, loading must not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from kvq_core.errors import ModelError
from kvq_core.models.lockstep import ForeignAttention, check_asked

_NAME = "kvq_survey"


@dataclass(frozen=True)
class AttentionCall:
    """A layer's call of its attention: the ``module`` that makes it, by name, what q·k is multiplied with, soft-cap and
    window as it hands them on, the name of the parameter that holds its sinks, and the shapes of its tensors."""

    module: str
    scaling: float
    softcap: float | None
    window: int | None
    sinks: str | None
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int


class Unlike(ModelError):
    """A model that does not attend as the engine takes it."""


_CALLS: ContextVar[list[tuple[nn.Module, int, dict[str, Any]]] | None] = ContextVar("calls", default=None)
_known: "WeakKeyDictionary[nn.Module, dict[int, AttentionCall]]" = WeakKeyDictionary()


def survey(model: Any) -> dict[int, AttentionCall]:
    """The calls of a transformers model, by layer. Raises Unlike with the reason, which begins with "its"."""
    if model not in _known:
        _known[model] = _surveyed(model)
    return _known[model]


def attention_modules(model: Any) -> dict[int, nn.Module]:
    """The module of each layer that attends, by layer."""
    return {layer: model.get_submodule(call.module) for layer, call in survey(model).items()}


def _surveyed(model: Any) -> dict[int, AttentionCall]:
    calls: list[tuple[nn.Module, int, dict[str, Any]]] = []
    with torch.device("meta"), torch.no_grad(), _unchecked_distributions(), _listening(calls):
        try:
            twin = type(model)(deepcopy(model.config)).to(torch.bfloat16).eval()  # experts have no float32 on meta
            twin.set_attn_implementation(_NAME)
            token = torch.zeros(1, 1, dtype=torch.long)
            twin(input_ids=token, position_ids=token, use_cache=False)
        except ForeignAttention as error:
            raise Unlike(str(error)) from None
        except (ModelError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            raise Unlike("its attention does not hand its keys and values to another implementation") from None
    layers = [layer for _, layer, _ in calls]
    if len(set(layers)) < len(layers):
        raise Unlike("its layers do not all attend once a token")
    names = {id(module): name for name, module in twin.named_modules()}
    return {
        layer: AttentionCall(module=names[id(module)], **told)
        for module, layer, told in sorted(calls, key=lambda c: c[1])
    }


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Gemma 3n takes a quantile of a normal distribution, whose check of its arguments reads numbers of tensors."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


@contextmanager
def _listening(calls: list[tuple[nn.Module, int, dict[str, Any]]]) -> Iterator[None]:
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _note)
    token = _CALLS.set(calls)
    try:
        yield
    finally:
        _CALLS.reset(token)


def _note(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    check_asked(attention_mask, kwargs)
    calls, layer = _CALLS.get(), getattr(module, "layer_idx", None)
    if calls is None or not isinstance(layer, int):
        raise ForeignAttention("its attention does not say which layer it is of")
    sinks = kwargs.get("s_aux")
    told = {
        "scaling": float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        "softcap": kwargs.get("softcap"),
        "window": kwargs.get("sliding_window"),
        "sinks": None if sinks is None else _parameter(module, sinks),
        "query_heads": query.shape[1],
        "kv_heads": key.shape[1],
        "key_dim": key.shape[-1],
        "value_dim": value.shape[-1],
    }
    calls.append((module, layer, told))
    turned = query.transpose(1, 2)
    return turned.new_empty(*turned.shape[:-1], value.shape[-1]), None


def _parameter(module: nn.Module, sinks: Tensor) -> str:
    found = next((name for name, own in module.named_parameters(recurse=False) if own is sinks), None)
    if found is None:
        raise ForeignAttention("its attention sinks are no parameter of the layer's attention")
    return found
