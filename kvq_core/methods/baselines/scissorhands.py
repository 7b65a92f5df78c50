"""Scissorhands (arXiv 2305.17118): tokens that recent queries keep giving little attention are dropped.

From the paper alone (Algorithm 2): no code of the authors was found.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.methods.base import Fitted, Prompt
from kvq_core.methods.eviction import KEPT, Evicting, Eviction, EvictionMethod, prompt_attention


@dataclass
class Counting(Evicting):
    """Scores are minus how often, in the last ``window`` queries, a token received less than the mean. ``history``:
    what each of these queries counted, (kv_heads, tokens) uint8, oldest first, by layer."""

    window: int = 1
    history: list[tuple[Tensor, ...]] = field(default_factory=list)

    def fork(self) -> "Counting":
        return replace(self, scores=list(self.scores), until=list(self.until), history=list(self.history))

    def gained(self, layer: int, attention: Tensor) -> Tensor:
        fresh, tokens = attention.shape[-2:]
        held = int((self.until[layer][0, : tokens - fresh] == KEPT).sum())
        added = below_mean(attention, held)
        every = (*self.history[layer], *added)
        left = every[: max(0, len(every) - self.window)]
        self.history[layer] = every[len(left) :]
        change = torch.zeros(attention.shape[0], tokens, device=attention.device)
        for row in left:
            change[:, : row.shape[-1]] += row
        for row in added:
            change -= row
        return change


def below_mean(attention: Tensor, before: int) -> tuple[Tensor, ...]:
    """In how many query heads of a KV head each token receives less than 1/t from a query that reads t keys: of each of
    n queries (kv_heads, tokens) uint8. attention (kv_heads, groups, n, tokens), the last n of the tokens being their
    own; ``before``: keys read of those before."""
    n, tokens = attention.shape[-2:]
    seen = torch.ones(n, tokens, dtype=torch.bool, device=attention.device).tril(tokens - n)
    read = torch.arange(before + 1, before + n + 1, device=attention.device)[:, None]
    low = (attention * read < 1) & seen
    return low.sum(1, dtype=torch.uint8).unbind(1)


class ScissorhandsSelection(Eviction):
    """``select = {by = "scissorhands"}``."""

    by: Literal["scissorhands"]

    def fit(self, prompt: Prompt, tokens: int) -> Fitted:
        count = prompt.keys.shape[-2]
        heavy, recent = self.tokens(tokens)
        window = max(1, recent)
        history = []
        for layer in range(len(prompt.keys)):
            rows: list[Tensor] = []
            for attention in prompt_attention(prompt, layer, window):
                rows += below_mean(attention, attention.shape[-1] - attention.shape[-2])
            history.append(tuple(pad(row, (0, count - row.shape[-1])) for row in rows))
        scores = [-torch.stack(rows).float().sum(0) for rows in history]
        return self.fitted(Counting(heavy, recent, scores, window=window, history=history), prompt, tokens)


class Scissorhands(EvictionMethod):
    """Nothing is quantized: each KV head keeps the newest tokens and, of the older ones, those that recent queries have
    least often given less attention than the mean. Both budgets are fractions of the prompt, fixed at its end.

    A token counts as unimportant to a query that reads t keys where it receives less than 1/t of its attention. Over
    the last w queries, w being the recent window, these counts are summed, over the query heads of a KV head as well;
    the tokens with the highest counts are dropped, after the prompt and after every step, and never come back.

    Kept tokens are 16 bits an element, as here all are: what is dropped is only no longer read, so the bytes shown are
    those of all tokens, and the lane's notes say what share is kept. As ``select = {by = "scissorhands"}`` it goes
    beside any storage.
    """

    name: ClassVar[str] = "scissorhands"
    title: ClassVar[str] = "Scissorhands"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2305.17118"
    deviations: ClassVar[tuple[str, ...]] = (
        "From the paper alone: its authors published no code that was found.",
        "The history window w is the recent window, which the paper sets apart.",
        "Counts are summed over the query heads that share a KV head, which keep the same tokens; t counts the keys "
        "that the query reads.",
        "What is one too many is dropped after every step; the paper drops half of its budget at once when it is full.",
        "Every layer has the same budget; the paper gives later layers more.",
        "Of tokens with equal counts the older are dropped.",
    )

    @property
    def selection(self) -> ScissorhandsSelection:
        return ScissorhandsSelection(by="scissorhands", heavy=self.heavy, recent=self.recent)
