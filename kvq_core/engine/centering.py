"""Which constant a lane's keys are centred on, and how it looks at every position.

A constant before RoPE is turned by RoPE as keys are, so it differs from position to position after it; its mean there
keeps only the channel pairs that turn slowly: of a constant many times the keys, even a small rest that it does not
keep is larger than they are.

What is subtracted is added back when keys are read. A fork of llama.cpp that subtracts a mean after RoPE
(--kv-mean-center) adds nothing back: where every key has lost the same vector, all scores of a query move by the same
number, which the softmax does not see. Here first and newest tokens keep theirs.

Slow biases are left out and not added back, of all tokens of a layer alike: those of RoPE pairs that hardly turn over
the comparison's context, which move all scores of a query by nearly the same number (docs/mend.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from kvq_core.codecs.center import Center
from kvq_core.methods import Prompt
from kvq_core.models.pairs import Pairs
from kvq_core.spec import Centering


class Turning(Protocol):
    """RoPE of the layers that are centred."""

    def rotate(self, keys: Tensor, start: int) -> Tensor: ...

    def unrotate(self, keys: Tensor, start: int) -> Tensor: ...


def center_of(how: Centering, prompt: Prompt, rope: Turning, pre: bool, bias: Tensor | None) -> Center | None:
    """The constant of some layers' keys; None for ``none``.

    ``rope`` of these layers; ``pre``: keys are stored before it; ``bias`` (layers, kv_heads, head_dim) of the key
    projection; for ``slow`` what ``slow_biases`` are of it. A mean is that of the prompt's keys,
    ``prompt.rotated`` being those after RoPE.
    """
    if how == "none":
        return None
    assert prompt.rotated is not None
    if how in ("bias", "slow"):
        assert bias is not None, "a lane without a bias to centre on is refused before it runs"
        bias = bias.to(prompt.keys.device)
        return Center(_at(bias, None if pre else rope.rotate), None, bias if how == "slow" else None)
    if how == "mean":
        mean = _mean(rope.unrotate(prompt.rotated, 0))
        return Center(_at(mean.float(), None if pre else rope.rotate), mean)
    mean = _mean(prompt.rotated)
    return Center(_at(mean.float(), rope.unrotate if pre else None), mean)


def slow_biases(bias: Tensor, pairs: Sequence[Pairs], context: int) -> Tensor:
    """Biases (layers, kv_heads, head_dim) of key projections where a pair hardly turns over so many tokens, else 0."""
    slow = torch.stack([own.spread(own.slow(context)) for own in pairs]).to(bias.device)
    return torch.where(slow[:, None], bias, torch.zeros_like(bias))


def slow_note(pairs: Sequence[Pairs], context: int) -> str:
    """What the lane's card says."""
    counts = sorted({int(own.slow(context).sum()) for own in pairs})
    count = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0]
    of = max(len(own.theta) for own in pairs)
    return f"biases of {count} of {of} RoPE pairs are left out, which turn by 1/32 rad or less over {context} tokens"


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
