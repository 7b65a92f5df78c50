"""A rotation of the channels that a tensor is stored behind: turned when tokens are encoded, turned back when read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import torch
from numpy.random import PCG64, SeedSequence
from torch import Tensor

SEED = 18  # of the signs; another one would be another store


def largest_block(head_dim: int) -> int:
    """The largest power of two that divides a head."""
    return head_dim & -head_dim


@dataclass(frozen=True)
class Hadamard:
    """The normalised Hadamard transform of every ``len(matrix)`` consecutive channels of a head, orthogonal and its own
    inverse, after ``signs`` where there are any.

    matrix (block, block) float32; signs (layers, kv_heads, 1, head_dim) of 1 and -1. Nothing of it is stored: the
    signs follow from SEED, the layer and the head. Keys and values of a head have the same.
    """

    matrix: Tensor
    signs: Tensor | None = None

    @classmethod
    def of(cls, block: int, device: torch.device) -> Self:
        """Without signs; ``block`` is a power of two."""
        half = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        matrix = reduce(torch.kron, [half] * (block.bit_length() - 1), torch.ones(1, 1, dtype=torch.float64))
        return cls((matrix * block**-0.5).float().to(device))

    @classmethod
    def signed(cls, block: int, device: torch.device, layers: Sequence[int], kv_heads: int, head_dim: int) -> Self:
        """With the signs of these ``layers`` of the model."""
        signs = torch.stack([_signs(layer, head, head_dim) for layer in layers for head in range(kv_heads)])
        own = signs.view(len(layers), kv_heads, 1, head_dim).to(device)
        return cls(cls.of(block, device).matrix, own)

    @property
    def block(self) -> int:
        """Channels that are mixed with one another."""
        return len(self.matrix)

    def turned(self, x: Tensor) -> Tensor:
        """x (layers, heads, n, head_dim) of keys, values, or of the queries that share their KV heads, turned."""
        return self._mixed(x if self.signs is None else x * self._signs_of(x.shape[1]))

    def back(self, x: Tensor) -> Tensor:
        """The inverse of ``turned``."""
        return self._mixed(x) if self.signs is None else self._mixed(x) * self._signs_of(x.shape[1])

    def rows_back(self, rows: Tensor, layer: Tensor, head: Tensor) -> Tensor:
        """``back`` of single tokens: rows (n, head_dim) of layer[i], head[i]."""
        return self._mixed(rows) if self.signs is None else self._mixed(rows) * self.signs[layer, head, 0]

    def gram(self, gram: Tensor) -> Tensor:
        """QᵀQ (layers, kv_heads, head_dim, head_dim) of queries once they are turned."""
        return self.turned(self.turned(gram).mT)

    def on(self, layer: int) -> "Hadamard":
        """That of one of its layers."""
        return self if self.signs is None else Hadamard(self.matrix, self.signs[layer : layer + 1])

    def _signs_of(self, heads: int) -> Tensor:
        assert self.signs is not None
        return self.signs.repeat_interleave(heads // self.signs.shape[1], 1)

    def _mixed(self, x: Tensor) -> Tensor:
        return (x.unflatten(-1, (-1, self.block)) @ self.matrix.to(x.dtype)).flatten(-2)


def _signs(layer: int, head: int, head_dim: int) -> Tensor:
    """A head's signs from the raw bits of a generator whose stream NumPy keeps: (head_dim,) of 1 and -1."""
    words = PCG64(SeedSequence([SEED, layer, head])).random_raw(-(-head_dim // 64)).tolist()
    bits = [word >> place & 1 for word in words for place in range(64)]
    return 1.0 - 2.0 * torch.tensor(bits[:head_dim], dtype=torch.float32)
