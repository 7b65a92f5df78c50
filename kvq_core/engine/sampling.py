"""Choosing the next token of every row."""

import torch
from torch import Tensor


class Sampler:
    """Greedy at temperature 0, otherwise exact sampling with common random numbers.

    Every row owns the same seed, so at a step all rows draw the same noise and differ only where their distributions
    do; identically seeded generators make identical draws, hence one draw a step serves all rows.
    """

    def __init__(self, temperature: float, seed: int):
        self.temperature = temperature
        self._generator = torch.Generator().manual_seed(seed)
        self._noise: Tensor | None = None

    def draw(self, vocabulary: int) -> None:
        """Draw the next step's noise; call once a step."""
        if self.temperature > 0:
            self._noise = torch.empty(vocabulary).exponential_(generator=self._generator)

    def choose(self, logits: Tensor) -> list[int]:
        """Tokens of logits (rows, vocabulary): argmax(p / e), e exponential, is a sample of p."""
        if self._noise is None:
            return logits.argmax(-1).tolist()
        p = torch.softmax(logits.cpu().float() / self.temperature, -1)
        return (p / self._noise).argmax(-1).tolist()
