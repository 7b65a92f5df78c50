"""A model that computes as another kernel would: what it rounds otherwise, as noise after every layer."""

from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kvq_core.models.body import body
from kvq_core.models.stepping import replace_modules

SIZE = 2.0**-9  # relative; half the distance of neighbouring bfloat16 numbers


class KernelNoise:
    """Multiplies rows of hidden states by 1 + SIZE N(0, 1). The draws follow from the seed; a run's own, since the next
    draw depends on those before it."""

    def __init__(self, seed: int):
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, hidden: Tensor, row: int) -> Tensor:
        """hidden (rows, tokens, hidden size) with that row rounded; the others, and what is given, stay as they are."""
        device = hidden.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        noise = torch.randn(hidden.shape[1:], generator=self._generators[device], device=device)
        out = hidden.clone()
        out[row] = (hidden[row].float() * (1 + SIZE * noise)).to(hidden.dtype)
        return out


def round_row(model: Any, rounding: KernelNoise, row: int) -> Any:
    """A causal language model that rounds one row of a batch after each of its layers but the last, whose output the
    final norm and the head read.

    The model itself stays as it is: only what leads to the layers is copied, see ``replace_modules``.
    """
    layers = list(body(model).layers)[:-1]
    return replace_modules(model, {layer: _rounded(layer, rounding, row) for layer in layers})


def _rounded(layer: nn.Module, rounding: KernelNoise, row: int) -> nn.Module:
    """The layer with a forward of its own; models ask layers for more than their output, such as their kind."""
    twin = copy(layer)
    twin.forward = partial(_forward, layer.forward, rounding, row)
    return twin


def _forward(forward: Any, rounding: KernelNoise, row: int, *args: Any, **kwargs: Any) -> Any:
    out = forward(*args, **kwargs)
    return (rounding(out[0], row), *out[1:]) if isinstance(out, tuple) else rounding(out, row)
