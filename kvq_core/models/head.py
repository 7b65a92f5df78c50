"""A model's output head by itself: what it makes of hidden states, with its own scalings and soft-caps."""

from copy import copy
from typing import Any

from torch import Tensor, nn

from kvq_core.models.body import body, body_name

POSITIONS = 16  # whose logits are held at once, so that memory does not grow with length times vocabulary


class _Answer:
    """What the layers answered; of what else some models' forwards pass on, such as router logits, there is none."""

    def __init__(self, hidden: Tensor):
        self.last_hidden_state = hidden

    def __getitem__(self, at: int) -> Tensor | None:
        return self.last_hidden_state if at == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class _Held(nn.Module):
    """Stands for the layers of a model, which have answered already."""

    def __init__(self, hidden: Tensor, base: nn.Module):
        super().__init__()
        self.hidden = hidden
        self._base = (base,)  # no module of its own

    def __getattr__(self, name: str) -> Any:
        """What a head reads of the layers' module, such as a factor of its logits."""
        return super().__getattr__(name) if name == "_base" else getattr(self._base[0], name)

    def forward(self, *_: Any, **__: Any) -> _Answer:
        return _Answer(self.hidden)


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """Logits (rows, tokens, vocabulary) of a causal language model whose layers answered ``hidden``
    (rows, tokens, hidden size). The model's own forward, on a copy of its outermost module alone."""
    twin = copy(model)
    twin._modules = {**model._modules, body_name(model): _Held(hidden, body(model))}
    return twin(input_ids=None, inputs_embeds=hidden, use_cache=False).logits
