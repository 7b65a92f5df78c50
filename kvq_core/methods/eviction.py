"""Eviction: a KV head keeps the tokens that attention has gone to and the newest ones, and reads no others any more.

After every step a token that leaves the recent window is weighed against those kept before it. What is dropped never
comes back. A row's steps decide what it drops, so that each row has a choice of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor
from torch.nn.functional import pad

from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, KeySelection, Method, Prompt

KEPT = torch.iinfo(torch.int32).max  # of Evicting.until: no step has dropped it
QUERIES = 64  # whose attention over a prompt is computed at once


class Budget(BaseModel):
    """How many tokens a KV head keeps."""

    heavy: float = Field(
        0.1,
        ge=0,
        le=1,
        title="Heavy",
        description="Tokens kept for the attention they have received, a fraction of the prompt.",
    )
    recent: float = Field(0.1, ge=0, le=1, title="Recent", description="Newest tokens kept, a fraction of the prompt.")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not 0 < self.heavy + self.recent < 1 + 1e-9:
            raise ValueError(
                f"heavy = {self.heavy:g} and recent = {self.recent:g} keep {self.heavy + self.recent:g} of the prompt; "
                "give fractions of it that are more than 0 and at most 1 together."
            )
        return self

    def tokens(self, prompt: int) -> tuple[int, int]:
        """Heavy and recent tokens of a prompt of so many; those of its end hold for every later step."""
        return int(self.heavy * prompt + 1e-9), int(self.recent * prompt + 1e-9)

    def summary(self) -> str:
        """``10 % heavy, 10 % recent``."""
        return f"{100 * self.heavy:.3g} % heavy, {100 * self.recent:.3g} % recent"


class Eviction(Budget, KeySelection):
    """A lane's selection that keeps so many tokens."""

    needs_queries = True

    def summary(self) -> str:
        return f"{self.by} {Budget.summary(self)}"

    def not_chunked(self, own_chunk: str) -> str | None:
        if own_chunk == "raw":
            return None
        return (
            f"{self.by} drops tokens after each chunk, and with own_chunk = stored a result does not depend on the "
            "chunk; take own_chunk = raw"
        )

    def fitted(self, select: "Evicting", prompt: Prompt, tokens: int) -> Fitted:
        """The choice once the prompt, or its first chunk, has been read, which all of its queries have read whole."""
        count = prompt.keys.shape[-2]
        for layer in range(len(prompt.keys)):
            select.drop(layer, count)
        kept = min(tokens, select.heavy + select.recent)
        often = "at every step" if count == tokens else "after every chunk and at every step"
        note = (
            f"{self.by} keeps {kept} of the prompt's {tokens} tokens a KV head ({kept / tokens:.0%}): {select.heavy} "
            f"heavy, {select.recent} recent, and as many {often}; bytes and bits are those of all tokens, for what is "
            "dropped is still stored here"
        )
        return Fitted(None, None, (note,), select)


class EvictionMethod(Budget, Method):
    """A method that is nothing but a selection: what it keeps is fp16."""

    quantizes: ClassVar[bool] = False
    token_local: ClassVar[tuple[bool, bool]] = (True, True)

    def windows(self) -> tuple[Window, Window]:
        return Window(step=None), Window(step=None)

    def fit(self, prompt: Prompt) -> Fitted:
        return Fitted(None, None)

    def summary(self) -> str:
        return f"keeps {Budget.summary(self)}"


@dataclass
class Evicting:
    """What a KV head keeps, by layer: scores (kv_heads, tokens), the more the heavier, of which those who are no longer
    kept say nothing, and until (kv_heads, tokens) int32: the last number of tokens in the cache at which a step still
    read this one. Their tensors are replaced, never changed: a fork shares them."""

    heavy: int
    recent: int
    scores: list[Tensor]
    until: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.until = self.until or [torch.full_like(s, KEPT, dtype=torch.int32) for s in self.scores]

    def __call__(self, layer: int, queries: Tensor, tokens: int) -> Tensor:
        """The keys that a step of so many tokens, its own included, reads or has read; see ``Select``."""
        known = self.until[layer][:, :tokens]
        return pad(known >= tokens, (0, tokens - known.shape[-1]), value=True)

    def fork(self) -> "Evicting":
        """An independent copy, for a row that goes its own way."""
        return replace(self, scores=list(self.scores), until=list(self.until))

    def follow(self, layer: int, attention: Tensor) -> None:
        """Take in a step: the attention of its queries (kv_heads, groups, fresh, tokens), the last of the tokens being
        their own; then drop what is one too many."""
        tokens = attention.shape[-1]
        new = tokens - self.until[layer].shape[-1]
        self.until[layer] = pad(self.until[layer], (0, new), value=KEPT)
        self.scores[layer] = pad(self.scores[layer], (0, new)) + self.gained(layer, attention)
        self.drop(layer, tokens)

    def gained(self, layer: int, attention: Tensor) -> Tensor:
        """What a step adds to the scores: here all the attention that a token receives."""
        return attention.sum((1, 2))

    def drop(self, layer: int, tokens: int) -> None:
        """Of the tokens before the recent ones keep the heaviest; of equal ones the older go."""
        aged = tokens - self.recent
        if aged <= self.heavy:
            return
        held = self.until[layer][:, :aged] == KEPT
        many = int(held[0].sum()) - self.heavy
        if many <= 0:
            return
        weighed = self.scores[layer][:, :aged].masked_fill(~held, float("inf"))
        order = weighed.argmin(-1, keepdim=True) if many == 1 else weighed.argsort(dim=-1, stable=True)[:, :many]
        self.until[layer] = self.until[layer].scatter(-1, order, tokens)

    def share(self, layer: int) -> float:
        """Of all tokens held, those that the next step reads."""
        return (self.until[layer] == KEPT).double().mean().item()


def prompt_attention(prompt: Prompt, layer: int, last: int | None = None) -> Iterator[Tensor]:
    """Causal attention of a layer's ``last`` queries of the prompt, of all of them where it is None, a few at a time
    and in order: (kv_heads, groups, n, tokens seen by the n-th), float32."""
    assert prompt.queries is not None
    keys, queries = prompt.keys[layer].float(), prompt.queries[layer].float()
    count = keys.shape[-2]
    first = count - min(queries.shape[-2], count if last is None else last)
    queries = queries.unflatten(0, (len(keys), -1))[..., first - count :, :] if first < count else queries[:, :0]
    for start in range(first, count, QUERIES):
        end = min(start + QUERIES, count)
        asked = (queries[..., start - first : end - first, :] * prompt.scaling[layer]).flatten(1, 2)
        scores = (asked @ keys[:, :end].mT).unflatten(1, (-1, end - start))
        future = torch.ones(end - start, end - start, dtype=torch.bool, device=keys.device).triu(1)
        scores[..., start:].masked_fill_(future, float("-inf"))
        yield scores.softmax(-1)
