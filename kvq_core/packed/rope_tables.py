"""The model's RoPE for caches that store keys before it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from kvq_kernels import Turn
from torch import Tensor

from kvq_core.errors import MethodError
from kvq_core.models.rope import Rope, Rotation, rotate_half
from kvq_core.models.shape import rope_of


@dataclass
class RopeTables:
    """Tables of a model, made anew at twice the length when the text outgrows them. Layers without RoPE (``rotation``
    "none") turn by nothing.

    Raises MethodError where the model turns other channels together than rotate-half models, whose kernels these are,
    or in a way that is not known.
    """

    model: Any
    tokens: int = 1024
    rotation: Rotation = "rope"
    layer: int = 0  # whose tables they are
    rope: Rope = field(init=False)

    def __post_init__(self) -> None:
        if self.rotation == "unknown":
            raise MethodError(
                f"{self.model.config.model_type} models rotate keys of some layers in a way that is not known, so they "
                "cannot be stored before RoPE; take a method that stores keys after it."
            )
        self._make()
        dim = self.rope.norm.shape[-1]
        x = torch.arange(1.0, dim + 1, device=self.rope.cos.device).expand(1, 1, 2, dim)
        cos, sin = self.rope.cos[None, :2], self.rope.sin[None, :2]
        whole = cos.shape[-1] == dim and torch.equal(cos[..., : dim // 2], cos[..., dim // 2 :])
        if not whole or not torch.equal(self.rope.apply(x, x[:0], cos, sin)[0], rotate_half(x, x[:0], cos, sin)[0]):
            raise MethodError(
                f"{self.model.config.model_type} models turn keys in another way than channel i with channel "
                "i + head_dim / 2, the only one that keys stored before RoPE can be read with packed."
            )

    def _make(self) -> None:
        self.rope = rope_of(self.model, self.tokens).table_of(self.layer)
        if self.rotation == "none":
            still = torch.ones_like(self.rope.norm)
            self.rope = Rope.of(still, torch.zeros_like(still), still.shape[-1])

    def _reach(self, tokens: int) -> Rope:
        while self.tokens < tokens:
            self.tokens *= 2
            self._make()
        return self.rope

    def turn(self, start: int, end: int, device: torch.device) -> Turn:
        """What the operations take for keys at positions start .. end - 1."""
        rope = self._reach(end)
        half = rope.cos.shape[-1] // 2
        return Turn(rope.cos[start:end, :half].to(device), rope.sin[start:end, :half].to(device))

    def at(self, positions: Tensor) -> Turn:
        """The same for any positions (...): tables (..., head_dim / 2)."""
        rope = self._reach(int(positions.max()) + 1 if positions.numel() else 0)
        half = rope.cos.shape[-1] // 2
        index = positions.to(rope.cos.device)
        return Turn(rope.cos[index, :half].to(positions.device), rope.sin[index, :half].to(positions.device))

    def rotate(self, keys: Tensor, start: int) -> Tensor:
        """Stored keys (rows, kv_heads, tokens, head_dim) float32 as attention reads them."""
        return self._reach(start + keys.shape[-2]).rotate(keys, start)

    def unrotate(self, keys: Tensor, start: int) -> Tensor:
        """Keys after RoPE as they are stored."""
        return self._reach(start + keys.shape[-2]).unrotate(keys, start)
