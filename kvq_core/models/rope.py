"""Rotary position embedding as a pair of exact inverse maps, so that keys can be stored before or after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvq_core.errors import MethodError

Apply = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Rotation = Literal["rope", "none", "unknown"]  # of a layer's keys: as the tables say, not at all, in another way


def rotate_half(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The convention of Llama, Qwen and Mistral: channel i is paired with channel i + head_dim / 2.

    q, k (batch, heads, tokens, head_dim); cos, sin (batch, tokens, head_dim).
    """

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * c + turned(q) * s, k * c + turned(k) * s


@dataclass(frozen=True)
class Rope:
    """RoPE tables of positions 0 .. n-1 with the model's own way of applying them.

    cos, sin (n, rotary_dim) float32, as the model computes them in its own dtype; ``norm`` (n, head_dim) is
    cos^2 + sin^2 of each channel's pair. It differs from 1 where tables were rounded to half precision and where a RoPE
    type scales them (YaRN), and must be divided out to invert the rotation. ``apply`` takes the first ``channels`` of a
    head. ``rotations``: of each layer of the tensors it is given; empty where all are rotated.
    """

    cos: Tensor
    sin: Tensor
    norm: Tensor
    channels: int
    apply: Apply = rotate_half
    rotations: tuple[Rotation, ...] = ()

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor, head_dim: int, apply: Apply = rotate_half) -> "Rope":
        """From tables (n, rotary_dim)."""
        one = torch.ones(1, 1, cos.shape[0], head_dim, device=cos.device)
        try:
            apply(one, one[:0], cos[None], sin[None])
            channels = head_dim
        except RuntimeError:  # a model that cuts the rotated channels out of its heads itself
            channels = cos.shape[-1]
        plain = cls(cos, sin, torch.ones_like(one[0, 0]), channels, apply)
        # turning forth and back leaves each channel scaled by its pair's norm, whatever the convention
        return replace(plain, norm=plain.unrotate(plain.rotate(one, 0), 0)[0, 0])

    @property
    def tables(self) -> "Rope":
        """The rotation itself, for tensors of layers that have it."""
        return replace(self, rotations=())

    def on(self, layers: Sequence[int]) -> "Rope":
        """For tensors of some of the layers, in that order."""
        return replace(self, rotations=tuple(self.rotations[i] for i in layers)) if self.rotations else self

    @property
    def known(self) -> bool:
        """Whether keys of all the layers can be rotated back."""
        return "unknown" not in self.rotations

    def rotates(self, layer: int) -> bool:
        """Whether a layer's keys are rotated at all."""
        return not self.rotations or self.rotations[layer] != "none"

    def table_of(self, layer: int) -> "Rope":
        """The tables that a layer is rotated by."""
        return self.tables

    def number_of(self, layer: int) -> int:
        """Which tables these are: the same number for layers that have the same."""
        return 0

    def at(self, positions: Tensor) -> "Rope":
        """Tables of some positions (n,) alone: position i of them is ``positions[i]``."""
        return replace(self, cos=self.cos[positions], sin=self.sin[positions], norm=self.norm[positions])

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Keys before RoPE -> after: x (layers, kv_heads, tokens, head_dim) float32 at positions start, start+1, ...

        Raises MethodError for layers whose rotation is unknown.
        """
        return self._turn(x, start, 1.0)

    def unrotate(self, x: Tensor, start: int) -> Tensor:
        """Inverse of rotate, exact up to float32 rounding. Raises MethodError as that does."""
        return self._turn(x, start, -1.0)

    def _turn(self, x: Tensor, start: int, sign: float) -> Tensor:
        if not self.known:
            raise MethodError(
                "Keys before RoPE cannot be had: how the model rotates those of some layers is not known."
            )
        cos, sin, norm = (t[start : start + x.shape[-2]].to(x.device) for t in (self.cos, self.sin, self.norm))
        given = x[..., : self.channels]
        # the models' functions turn a query and a key at once; an empty key costs nothing
        turned = self.apply(given, given[:0], cos[None], sign * sin[None])[0]
        if self.channels < x.shape[-1]:
            turned = torch.cat([turned, x[..., self.channels :]], -1)
        if sign < 0:
            turned = turned / norm
        for i, rotation in enumerate(self.rotations):
            if rotation == "none":
                turned[i] = x[i]
        return turned

    def matrices(self, start: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """rotate and unrotate of a layer at ``count`` positions from ``start`` as matrices (count, head_dim, head_dim):
        x @ m.

        For a few small x, one product takes a fraction of the time of the formula's many operations.
        """
        one = torch.eye(self.norm.shape[-1], device=device)[None, :, None].expand(-1, -1, count, -1)
        there, back = (turn(one, start)[0].transpose(0, 1) for turn in (self.tables.rotate, self.tables.unrotate))
        return there, back


@dataclass(frozen=True)
class LayeredRope(Rope):
    """RoPE of layers that do not all rotate by the same tables: ``each`` layer's. The fields are the first layer's
    tables, which answers where only one is asked for."""

    each: tuple[Rope, ...] = ()

    @classmethod
    def by(cls, each: Sequence[Rope], rotations: tuple[Rotation, ...] = ()) -> Rope:
        """Of layers by their tables, which are one Rope where these are all the same."""
        first = each[0]
        if all(rope is first for rope in each):
            return replace(first, rotations=rotations)
        return cls(first.cos, first.sin, first.norm, first.channels, first.apply, rotations, tuple(each))

    def on(self, layers: Sequence[int]) -> Rope:
        rotations = tuple(self.rotations[i] for i in layers) if self.rotations else ()
        return LayeredRope.by([self.each[i] for i in layers], rotations)

    def table_of(self, layer: int) -> Rope:
        return self.each[layer]

    def number_of(self, layer: int) -> int:
        return next(i for i, rope in enumerate(self.each) if rope is self.each[layer])

    def _turn(self, x: Tensor, start: int, sign: float) -> Tensor:
        plain: Rotation = "rope"
        own = self.rotations or (plain,) * len(x)
        each = (replace(rope, rotations=(how,)) for rope, how in zip(self.each, own, strict=False))
        return torch.cat([rope._turn(x[i : i + 1], start, sign) for i, rope in zip(range(len(x)), each, strict=False)])
