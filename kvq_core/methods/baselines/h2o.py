"""H2O (arXiv 2306.14048): the tokens that have received most attention stay, with the newest ones.

Source: the paper's Algorithm 1 and FMInference/H2O, h2o_hf/utils_real_drop (H2OKVCache_LayerWise): scores, budgets.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvq_core.methods.base import Fitted, Prompt
from kvq_core.methods.eviction import Evicting, Eviction, EvictionMethod, prompt_attention


class H2oSelection(Eviction):
    """``select = {by = "h2o"}``."""

    by: Literal["h2o"]

    def fit(self, prompt: Prompt, tokens: int) -> Fitted:
        heavy, recent = self.tokens(tokens)
        scores = [_received(prompt, layer) for layer in range(len(prompt.keys))]
        return self.fitted(Evicting(heavy, recent, scores), prompt, tokens)


def _received(prompt: Prompt, layer: int) -> Tensor:
    """The attention that each token receives, summed over the queries and the query heads of a KV head:
    (kv_heads, tokens)."""
    keys = prompt.keys[layer]
    total = torch.zeros(keys.shape[:2], device=keys.device)
    for attention in prompt_attention(prompt, layer):
        total[:, : attention.shape[-1]] += attention.sum((1, 2))
    return total


class H2o(EvictionMethod):
    """Nothing is quantized: each KV head keeps the heavy hitters, tokens that have received most attention so far, and
    the newest tokens, and reads no others. Both budgets are fractions of the prompt and stay as they are from there on.

    A token's score is the sum of all attention it has received, from every query since its own: the prompt's, which
    read all of the prompt, and those of the steps after it. It is not divided by the number of queries, which favours
    old tokens. After every step the token that leaves the recent window competes with the heavy ones; what is dropped
    never comes back.

    Kept tokens are 16 bits an element, as here all are: what is dropped is only no longer read, so the bytes shown are
    those of all tokens, and the lane's notes say what share is kept. What it hurts: facts that nothing asked for until
    the answer needs them. As ``select = {by = "h2o"}`` it goes beside any storage.
    """

    name: ClassVar[str] = "h2o"
    title: ClassVar[str] = "H2O"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2306.14048"
    deviations: ClassVar[tuple[str, ...]] = (
        "Attention is summed over the query heads that share a KV head, which keep the same tokens; the authors' code "
        "sums per query head and does not run with grouped queries where it really drops.",
        "Budgets are fractions of the prompt's tokens, as in the authors' masked variant; the prompt itself is read "
        "whole, as in the variant that drops, or in chunks (prefill), after each of which tokens are dropped.",
        "Tokens keep the positions they had; the authors' variant for endless streams moves them together.",
        "Several continuation tokens scored in one pass (score_chunk) read the same tokens, and drop others only after "
        "it.",
    )

    @property
    def selection(self) -> H2oSelection:
        return H2oSelection(by="h2o", heavy=self.heavy, recent=self.recent)
