"""One text on the model: what a cache of its prompt would hold, and what comes after it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods.prompt import query_gram
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.models.scoring import Scoring, causal_attention


@dataclass
class Sample:
    """``ids`` run through the model once in full precision. The first ``prompt`` tokens are what a lane's cache holds;
    the later ones play the answer: their queries read it, their logits are scored.

    keys, values (layers, kv_heads, tokens, head_dim), queries (layers, query_heads, tokens, head_dim), float32, after
    RoPE, of all tokens. A method is fitted on the prompt's part alone.
    """

    model: LoadedModel
    name: str
    ids: list[int]
    prompt: int
    keys: Tensor
    values: Tensor
    queries: Tensor
    rope: Rope

    @property
    def layers(self) -> int:
        return self.keys.shape[0]

    @cached_property
    def keys_before_rope(self) -> Tensor:
        """All keys, unrotated."""
        return self.rope.unrotate(self.keys, 0)

    @cached_property
    def prompt_gram(self) -> Tensor:
        """QᵀQ of the prompt's queries per KV head, float64 (layers, kv_heads, head_dim, head_dim)."""
        return query_gram(self.queries[..., : self.prompt, :], self.keys.shape[1])

    @cached_property
    def reference_logits(self) -> Tensor:
        """Logits of the later tokens over the unquantized cache: (later, vocabulary) float32."""
        return self.replay(self.keys[..., : self.prompt, :], self.values[..., : self.prompt, :])

    def replay(self, keys: Tensor, values: Tensor) -> Tensor:
        """Logits of the later tokens when their attention reads these for the prompt, and their own keys exactly.

        keys, values (layers, kv_heads, prompt, head_dim), keys after RoPE -> (later, vocabulary) float32. The later
        tokens go through every layer anew, so errors add up over layers as they do while decoding.
        """

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, how: Scoring) -> Tensor:
            past = [t[layer][None].to(q.device, q.dtype) for t in (keys, values)]
            return causal_attention(q, torch.cat([past[0], k], -2), torch.cat([past[1], v], -2), how)

        return self.model.forward(torch.tensor([self.ids[self.prompt :]]), self.prompt, attend)[0].cpu()


def capture(model: LoadedModel, name: str, ids: list[int], prompt: int) -> Sample:
    """Run a text through the model and keep its keys, values and queries, in layer order on one device."""
    prefill = SharedPrefill(model, ids)
    for _ in prefill.run():
        pass
    device = prefill.groups[0].device
    order = torch.tensor([layer for group in prefill.groups for layer in group.layers]).argsort()

    def joined(kind: str) -> Tensor:
        parts = [getattr(group, kind).to(device) for group in prefill.groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)[order.to(device)]

    return Sample(model, name, ids, prompt, joined("keys"), joined("values"), joined("queries"), model.rope(len(ids)))
