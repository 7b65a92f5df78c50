"""What CommVQ stores: levels of codebooks that commute with RoPE for keys, learned binary digits for values."""

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import torch
from kvq_kernels import Path, codebook_scores, codebook_values, pack, unpack
from kvq_kernels.rope_codebook import decode_pairs, encode_pairs, join_pairs, split_pairs
from torch import Tensor

from kvq_core.codebooks.encoder import EPS, Encoder
from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, count_codes, layer_slices
from kvq_core.codecs.forms import DecodedRead, Packed


@dataclass(frozen=True)
class KeyCodec(Codec):
    """Residual stages of levels (Eqs. 17, 18, 21). theta (layers, kv_heads, groups, stages, levels, P, 2) float16.

    A token is divided by its norm over all heads of the layer, one ``prescale`` number; codes are the two levels of
    every stage, log2(levels) bits each, in one bit stream a layer and head.
    """

    theta: Tensor
    metadata: torch.dtype = torch.float16
    shared: dict[str, Tensor] = field(default_factory=dict)

    def packed(self, path: Path) -> Packed:
        return Packed(partial(CodebookKeys, self, path))

    @property
    def model_bytes(self) -> int:
        return self.theta.numel() * self.theta.element_size()

    def encode(self, x: Tensor, start: int) -> Block:
        norms = x.square().sum((1, 3)).sqrt().to(self.metadata)  # (layers, tokens)
        codes = []
        for layers in layer_slices(x, 1 << 19):
            unit = x[layers] / norms[layers].float().clamp_min(EPS)[:, None, :, None]
            found = encode_pairs(split_pairs(unit, self.theta.shape[-2]), self.theta[layers].float())
            codes.append(pack(found.flatten(2), self._width()))  # (layers, kv_heads, bytes)
        return Block(x.shape[-2], {"codes": torch.cat(codes), "prescale": norms})

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        own = replace(self, theta=self.theta[layer : layer + 1])
        return own.decode(own.encode(x, start))

    def decode(self, block: Block) -> Tensor:
        groups, stages = self.theta.shape[2:4]
        norms = block.tensors["prescale"].float()
        parts = []
        for layers in layer_slices(block.tensors["codes"], 1 << 16):
            stream = unpack(block.tensors["codes"][layers], self._width(), groups * block.tokens * stages * 2)
            codes = stream.unflatten(-1, (groups, block.tokens, stages, 2))
            unit = join_pairs(decode_pairs(codes, self.theta[layers]))
            parts.append(unit * norms[layers][:, None, :, None])
        return torch.cat(parts)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        """Counts of the levels of each codebook: one a group, stage and place in the pair, (x, y) of the centre."""
        groups, stages = self.theta.shape[2:4]
        counts = torch.zeros(())
        for block in blocks:
            found = []
            for layers in layer_slices(block.tensors["codes"], 1 << 16):
                stream = unpack(block.tensors["codes"][layers], self._width(), groups * block.tokens * stages * 2)
                codes = stream.unflatten(-1, (groups, block.tokens, stages * 2)).transpose(-1, -2).flatten(2, 3)
                found.append(count_codes(codes, self.theta.shape[-3]))
            counts = counts + torch.cat(found)
        return {"code_counts": counts} if blocks else {}

    def bits(self, block: Block) -> Tensor:
        return _constant_bits(block, 2 * prod(self.theta.shape[i] for i in (1, 2, 5)))

    def _width(self) -> int:
        return self.theta.shape[-3].bit_length() - 1


@dataclass(frozen=True)
class ValueCodec(Codec):
    """Learned binary digits and a linear codebook (Eq. 9); heads of a layer are coded together."""

    encoder: Encoder
    heads: int
    metadata: torch.dtype = torch.float16
    shared: dict[str, Tensor] = field(default_factory=dict)

    def packed(self, path: Path) -> Packed:
        return Packed(partial(CodebookValues, self, path))

    @property
    def model_bytes(self) -> int:
        """Codebook and channel scales as float16."""
        return (self.encoder.codebook.numel() + self.encoder.scale.numel()) * 2

    @property
    def encoder_bytes(self) -> int:
        return self.encoder.w1.numel() + self.encoder.w2.numel()  # int8

    def encode(self, x: Tensor, start: int) -> Block:
        codes, norms = [], []
        for layers in layer_slices(x, 1 << 19):
            inputs, norm = self._of(layers).normalize(x[layers].transpose(1, 2).flatten(2))
            codes.append(pack(self._of(layers).digits(self._of(layers).logits(inputs)), 1))
            norms.append(norm[..., 0].to(self.metadata))
        return Block(x.shape[-2], {"codes": torch.cat(codes), "prescale": torch.cat(norms)})

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        own = replace(self, encoder=self._of(slice(layer, layer + 1)))
        return own.decode(own.encode(x, start))

    def decode(self, block: Block) -> Tensor:
        codes, norms = block.tensors["codes"], block.tensors["prescale"]
        parts, count = [], self.encoder.codebook.shape[1]
        for layers in layer_slices(codes, 1 << 16):
            v = self._of(layers).decode(unpack(codes[layers], 1, count).float(), norms[layers].float()[..., None])
            parts.append(v.unflatten(-1, (self.heads, -1)).transpose(1, 2))
        return torch.cat(parts)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        """How often each binary digit is 0 and 1; a digit that never changes is dead."""
        counts, digits = torch.zeros(()), self.encoder.codebook.shape[1]
        for block in blocks:
            ones = unpack(block.tensors["codes"], 1, digits).sum(1, dtype=torch.int32).cpu()  # (layers, digits)
            counts = counts + torch.stack([block.tokens - ones, ones], -1)[:, None]
        return {"code_counts": counts} if blocks else {}

    def bits(self, block: Block) -> Tensor:
        return _constant_bits(block, self.encoder.codebook.shape[-1])

    def _of(self, layers: slice) -> Encoder:
        e = self.encoder
        return Encoder(*(t[layers] for t in (e.scale, e.w1, e.b1, e.w2, e.b2, e.codebook)))


def _constant_bits(block: Block, channels: int) -> Tensor:
    """Stored bits an element, the same everywhere; ``channels`` a token and layer."""
    layers, tokens = block.tensors["prescale"].shape
    return torch.tensor(8 * sum(block.nbytes.values()) / (layers * tokens * channels)).view(1, 1, 1, 1)


@dataclass
class CodebookKeys(DecodedRead):
    """Codes of codebooks that commute with RoPE."""

    codec: KeyCodec

    def scores(self, q: Tensor) -> Tensor:
        t, turn = self.block.tensors, self.turn()
        if turn is None:
            return super().scores(q)
        return codebook_scores(q, self.codec.theta[0], t["codes"], t["prescale"], turn, self.path)


@dataclass
class CodebookValues(DecodedRead):
    """Binary digits. ``weights`` (rows, tokens) float32: the stored norm over the norm of what the digits add up to."""

    codec: ValueCodec
    weights: Tensor = field(init=False)

    def __post_init__(self) -> None:
        t, book = self.block.tensors, self.codec.encoder.codebook[0]
        sums = [unpack(digits, 1, len(book)).float() @ book for digits in t["codes"].split(4096, 1)]
        norms = torch.cat([part.norm(dim=-1) for part in sums], 1).clamp_min(EPS)
        self.weights = t["prescale"].float() / norms

    @property
    def index_bytes(self) -> int:
        return self.weights.numel() * self.weights.element_size()

    def weigh(self, p: Tensor) -> Tensor:
        encoder = self.codec.encoder
        digits = self.block.tensors["codes"]
        return codebook_values(p, digits, self.weights, encoder.codebook[0], encoder.scale[0], self.path)
