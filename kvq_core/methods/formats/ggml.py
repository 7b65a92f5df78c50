"""ggml's blocks: 32 channels of a token with an fp16 scale, as llama.cpp and its forks store rows.

Scales are computed in float32 and stored in fp16; codes come from the scale before it was rounded, except where a class
says otherwise (ggml-quants.c, quantize_row_*_ref). Bytes of a block are ggml's, their order is not. Rows come in
float32, whatever the weights are (ggml_set_rows).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from kvq_kernels import pack, unpack
from kvq_kernels.ggml import BLOCK, inverse, q8_0
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.queries import QueryRounding, rounded_q8_0
from kvq_core.methods.base import ModelRef
from kvq_core.methods.formats.planes import pack_planes, unpack_planes
from kvq_core.methods.formats.tokenwise import BasisChange, TokenCodec, rounded_behind

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl, ggml-common.h
OWN_ORDER = (
    "Keys lie in blocks in the order of channels that GGUF files of the model have: in those of Llama, Mistral, "
    "Granite and their kin channels that RoPE pairs are neighbours. Tensors without a model keep their own order."
)
Q8_0_QUERIES = "q8_0 in blocks of 32 channels"  # in words, what ``rounded_in`` makes of them
LEAST = 1e-15  # iq4_nl takes blocks with no larger magnitude for zeros


def _blocks(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, BLOCK))


def largest_magnitudes(blocks: Tensor) -> Tensor:
    """The element of the largest magnitude, with its sign, the first of several: (..., blocks, 1)."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))


@dataclass(frozen=True)
class WholeBlocks(TokenCodec):
    """q8_0: 34 bytes. A signed byte an element."""

    enters = torch.float32

    def store(self, x: Tensor) -> dict[str, Tensor]:
        codes, scales = q8_0(_blocks(x))
        return {"codes": codes.flatten(-2), "scales": scales.squeeze(-1)}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        return _blocks(tensors["codes"].float()).mul_(tensors["scales"].float()[..., None]).flatten(-2)

    packed = TokenCodec.packed


@dataclass(frozen=True)
class RangeBlocks(TokenCodec):
    """q4_1 and q5_1: 20 and 24 bytes. Even steps from a block's smallest element to its largest."""

    bits_per_code: int = 4
    enters = torch.float32

    def store(self, x: Tensor) -> dict[str, Tensor]:
        blocks, last = _blocks(x), (1 << self.bits_per_code) - 1
        low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
        steps = (high - low) / last
        codes = (blocks - low).mul_(inverse(steps)).add_(0.5).clamp_(max=last).to(torch.uint8)
        packed = pack_planes(codes.flatten(-2), self.bits_per_code)
        return {"codes": packed, "scales": steps.squeeze(-1).half(), "zeros": low.squeeze(-1).half()}

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        codes = _blocks(unpack_planes(tensors["codes"], self.bits_per_code).float())
        scales, zeros = (tensors[name].float()[..., None] for name in ("scales", "zeros"))
        return codes.mul_(scales).add_(zeros).flatten(-2)

    packed = TokenCodec.packed


@dataclass(frozen=True)
class SignedBlocks(TokenCodec):
    """q4_0 and q5_0: 18 and 22 bytes. Even steps on both sides of zero, one more on that of the largest magnitude,
    whose sign the scale carries; an element as large on the other side is cut by one step."""

    bits_per_code: int = 4
    enters = torch.float32

    @property
    def half(self) -> int:
        """The code of zero."""
        return 1 << self.bits_per_code - 1

    def store(self, x: Tensor) -> dict[str, Tensor]:
        blocks = _blocks(x)
        scales = largest_magnitudes(blocks) / -self.half
        scaled = blocks * inverse(scales)
        codes = (scaled + (self.half + 0.5)).clamp_(max=2 * self.half - 1).to(torch.uint8)
        scales = self.fitted(scales, blocks, scaled, codes).squeeze(-1).half()
        return {"codes": pack_planes(codes.flatten(-2), self.bits_per_code), "scales": scales}

    def fitted(self, scales: Tensor, blocks: Tensor, scaled: Tensor, codes: Tensor) -> Tensor:
        """The scales (..., blocks, 1) that are stored with codes of ``scaled`` blocks."""
        return scales

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        codes = _blocks(unpack_planes(tensors["codes"], self.bits_per_code).float())
        return codes.sub_(self.half).mul_(tensors["scales"].float()[..., None]).flatten(-2)

    packed = TokenCodec.packed


@dataclass(frozen=True)
class LevelBlocks(TokenCodec):
    """iq4_nl: 18 bytes. The nearest of sixteen levels, none of them zero, by a scale that makes the largest magnitude
    the outermost level; then the scale that fits these codes best, squares weighing each element."""

    enters = torch.float32

    def store(self, x: Tensor) -> dict[str, Tensor]:
        blocks = _blocks(x)
        first = largest_magnitudes(blocks)
        none = first.abs() < LEAST
        codes = self._nearest(blocks * inverse(first / LEVELS[0]).where(~none, torch.zeros_like(first)))
        levels = self._levels(codes)
        weighed = levels * blocks.square()
        scales = (weighed * blocks).sum(-1) / (weighed * levels).sum(-1)
        scales = scales.where(~none.squeeze(-1), torch.zeros_like(scales)).half()
        return {"codes": pack(codes.flatten(-2), 4), "scales": scales}

    @staticmethod
    def _nearest(scaled: Tensor) -> Tensor:
        """Indices of levels, halfway the upper one: uint8 by a table of half steps, since all bounds are halves."""
        levels = torch.tensor(LEVELS, dtype=torch.float32, device=scaled.device)
        most = -2 * LEVELS[0]
        steps = torch.arange(-most, most + 1, device=scaled.device) / 2
        table = torch.bucketize(steps, (levels[1:] + levels[:-1]) / 2, right=True).to(torch.uint8)
        at = (scaled * 2).floor_().add_(most).clamp_(0, 2 * most).int()
        return table.index_select(0, at.flatten()).view(scaled.shape)

    @staticmethod
    def _levels(codes: Tensor) -> Tensor:
        levels = torch.tensor(LEVELS, dtype=torch.float32, device=codes.device)
        return levels.index_select(0, codes.flatten().int()).view(codes.shape)

    def load(self, tensors: dict[str, Tensor]) -> Tensor:
        found = _blocks(self._levels(unpack(tensors["codes"], 4, 2 * tensors["codes"].shape[-1])))
        return found.mul_(tensors["scales"].float()[..., None]).flatten(-2)

    packed = TokenCodec.packed


@cache
def turn_of(block: int, device: torch.device) -> Hadamard | None:
    """What turns every ``block`` channels; None for 0."""
    return Hadamard.of(block, device) if block else None


@dataclass(frozen=True)
class Interleaved:
    """Channels that RoPE pairs, half a head apart, laid side by side, as GGUF files of some models have them; then
    turned, where the engine does."""

    turn: Hadamard | None

    def turned(self, x: Tensor) -> Tensor:
        paired = x.unflatten(-1, (2, -1)).mT.flatten(-2)
        return paired if self.turn is None else self.turn.turned(paired)

    def back(self, x: Tensor) -> Tensor:
        paired = x if self.turn is None else self.turn.back(x)
        return paired.unflatten(-1, (-1, 2)).mT.flatten(-2)


def key_turn_of(block: int, device: torch.device, model: ModelRef | None) -> BasisChange | None:
    """What keys of a model, and the queries that meet them, are turned by: in the order of channels that its GGUF files
    have, every ``block`` of them, 0: not at all."""
    turn = turn_of(block, device)
    return Interleaved(turn) if model is not None and model.interleaved else turn


def order_hash(model: ModelRef) -> str | None:
    """What tells a lane on a model with channels in another order from one whose keys lie in the order held here."""
    return "interleaved" if model.interleaved else None


def rounded_in(block_of: Callable[[int], int], model: ModelRef | None) -> QueryRounding:
    """Queries (..., query_heads, n, head_dim) rounded to q8_0 in the basis of their keys, which are turned in blocks of
    ``block_of(head_dim)`` channels, 0: not at all."""

    def rounded(queries: Tensor) -> Tensor:
        turn = key_turn_of(block_of(queries.shape[-1]), queries.device, model)
        return (rounded_q8_0 if turn is None else rounded_behind(rounded_q8_0, turn))(queries)

    return rounded


def tiles(head_dim: int) -> str | None:
    """Why heads of that size are no whole blocks, so that a block would lie in two heads; None where they are."""
    if head_dim % BLOCK:
        return f"head_dim = {head_dim} is no multiple of {BLOCK}, the channels of a block, as the engine demands"
    return None
