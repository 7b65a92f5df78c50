"""Gradients of a text's own loss by what a cache holds of it: what a small change of a key or a value costs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvq_core.models.scoring import Scoring, causal_attention

if TYPE_CHECKING:
    from kvq_core.models.loaded import LoadedModel


@dataclass(frozen=True)
class LayerGradients:
    """Of one layer's keys or values (kv_heads, tokens, head_dim), keys after RoPE: themselves and their gradients."""

    x: Tensor
    gradient: Tensor


def gradients(model: "LoadedModel", ids: list[int]) -> dict[int, tuple[LayerGradients, LayerGradients]]:
    """The keys and values of a text, of each layer that keeps any, with gradients of the sum of -log p of its tokens.

    The model's weights stay as they are, and no gradients are kept with them.
    """
    held: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        if how.reads is None:  # else they are those of an earlier layer, the tensors themselves
            for x in (keys, values):
                if not x.requires_grad:  # the first layer of a model whose weights are not learned
                    x.requires_grad_()
            held[layer] = keys, values
        return causal_attention(queries, keys, values, how)

    with torch.enable_grad():
        logits = model.answers(torch.tensor([ids]), attend)
        targets = torch.tensor(ids[1:], device=logits.device)
        loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), targets, reduction="sum")
        found = torch.autograd.grad(loss, [x for both in held.values() for x in both])
    pairs = zip(found[::2], found[1::2], strict=True)
    return {
        layer: (LayerGradients(keys[0].detach(), of_keys[0]), LayerGradients(values[0].detach(), of_values[0]))
        for (layer, (keys, values)), (of_keys, of_values) in zip(held.items(), pairs, strict=True)
    }
