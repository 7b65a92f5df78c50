"""Memory for what every layer of every step computes anew."""

import math

import torch
from torch import Tensor


class Scratch:
    """Memory that is lent again and again under a name.

    Fresh memory of this size would be handed out by the system page by page, in every layer of every step: measured 0
    to 3 % of a run of four lanes over 2,800 tokens, nothing over 550. What it is needed for is engine.tap_feed, whose
    layers write beside one another into memory that is found again by its name.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[torch.device, str], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """float32 of this shape, with what was last written under the name."""
        key, size = (device, name), math.prod(shape)
        if key not in self._held or self._held[key].numel() < size:
            self._held[key] = torch.empty(size + size // 8, device=device)
        return self._held[key][:size].view(shape)
