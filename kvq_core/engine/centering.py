"""Which constant a lane's keys are centred on, and how it looks at every position.

A constant before RoPE is turned by RoPE as keys are, so it differs from position to position after it; its mean there
keeps only the channel pairs that turn slowly: of a constant many times the keys, even a small rest that it does not
keep is larger than they are.

What is subtracted is added back when keys are read. A fork of llama.cpp that subtracts a mean after RoPE
(--kv-mean-center) adds nothing back: where every key has lost the same vector, all scores of a query move by the same
number, which the softmax does not see. Here first and newest tokens keep theirs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from kvq_core.codecs.center import Center
from kvq_core.methods import Prompt
from kvq_core.spec import Centering


class Turning(Protocol):
    """RoPE of the layers that are centred."""

    def rotate(self, keys: Tensor, start: int) -> Tensor: ...

    def unrotate(self, keys: Tensor, start: int) -> Tensor: ...


def center_of(how: Centering, prompt: Prompt, rope: Turning, pre: bool, bias: Tensor | None) -> Center | None:
    """The constant of some layers' keys; None for ``none``.

    ``rope`` of these layers; ``pre``: keys are stored before it; ``bias`` (layers, kv_heads, head_dim) of the key
    projection. A mean is that of the prompt's keys, ``prompt.rotated`` being those after RoPE.
    """
    if how == "none":
        return None
    assert prompt.rotated is not None
    if how == "bias":
        assert bias is not None, "a lane without a bias to centre on is refused before it runs"
        return Center(_at(bias.to(prompt.keys.device), None if pre else rope.rotate), None)
    if how == "mean":
        mean = _mean(rope.unrotate(prompt.rotated, 0))
        return Center(_at(mean.float(), None if pre else rope.rotate), mean)
    mean = _mean(prompt.rotated)
    return Center(_at(mean.float(), rope.unrotate if pre else None), mean)


def center_prompt(prompt: Prompt, center: Center | None) -> Prompt:
    """What a method is fitted on: keys without the constant."""
    return prompt if center is None else replace(prompt, keys=center.without(prompt.keys, 0))


def _mean(keys: Tensor) -> Tensor:
    """Mean over the tokens as a cache holds it: (layers, kv_heads, head_dim) fp16."""
    return keys.mean(-2).to(torch.float16)


def _at(constant: Tensor, turn: Callable[[Tensor, int], Tensor] | None) -> Callable[[int, int], Tensor]:
    """The constant (layers, kv_heads, head_dim) at positions; ``turn``: what takes it to the stream's space."""
    alike = constant[..., None, :]

    def at(start: int, tokens: int) -> Tensor:
        return alike if turn is None else turn(alike.expand(-1, -1, tokens, -1).contiguous(), start)

    return at
