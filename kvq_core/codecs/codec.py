"""Codecs: how one tensor (the keys or the values) of a lane is stored.

Shapes throughout: (layers, kv_heads, tokens, head_dim) for keys and values, (layers, query_heads, tokens, head_dim)
for queries. All layers of one lane that live on one device are encoded together.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from kvq_kernels import Grid, GroupCodes, Path, dequantize_groups, pack, quantize_groups, unpack
from torch import Tensor

from kvq_core.codecs.forms import GroupRead, Groups, Packed
from kvq_core.errors import MethodError


@dataclass(frozen=True)
class Block:
    """Consecutive tokens of all layers, encoded from the original values. Immutable.

    ``tensors`` are what a cache would hold; their bytes are the block's bytes. Part names end up in
    ``memory.bytes_by_part`` with ``key_`` or ``value_`` before them: codes, scales, zeros, ...
    """

    tokens: int
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> dict[str, int]:
        return {name: t.numel() * t.element_size() for name, t in self.tensors.items()}

    @property
    def host_bytes(self) -> int:
        """Bytes of a copy kept in host memory for re-encoding: listed apart, in neither bits nor ratio."""
        return 0


@dataclass(frozen=True)
class Patch:
    """Stored tokens that read differently from now on: values[i] (head_dim,) at layer[i], head[i], token[i].

    ``token`` counts from the first stored token, ``layer`` within the codec's layers; all are (n,), values
    (n, head_dim).
    """

    layer: Tensor
    head: Tensor
    token: Tensor
    values: Tensor


class Codec(ABC):
    """Encodes blocks of one tensor and decodes them; everything it needs was fitted on the prompt.

    ``shared`` holds tensors stored once per lane beside the blocks (a basis, norms); they count as stored bytes.
    """

    shared: dict[str, Tensor] = {}
    observes: bool = False  # whether ``observe`` is to be called after every step

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "packed" not in vars(cls):
            cls.packed = Codec.packed  # type: ignore[method-assign]

    def packed(self, path: Path) -> Packed:
        """How packed execution holds and reads what this codec stores; ``Packed.decoded(self, path)`` is always right.

        Not inherited: a class says it for itself (``packed = GroupCodec.packed`` where all is as in that class), since
        its parent's form does not know what it does in another way. Raises MethodError where nothing is said.
        """
        raise MethodError(
            f"{type(self).__name__} has no packed execution: it does not say how it is read; define its packed()."
        )

    @property
    def encoder_bytes(self) -> int:
        """Bytes of state that only encoding reads and no cache would ship; listed apart from the cache."""
        return 0

    @property
    def model_bytes(self) -> int:
        """Bytes decoding reads that belong to the model, whatever the number of caches; in no lane's bits."""
        return 0

    @abstractmethod
    def encode(self, x: Tensor, start: int) -> Block:
        """Encode x (layers, kv_heads, tokens, head_dim); ``start`` is the position of its first token."""

    def encode_prompt(self, x: Tensor, start: int) -> Block:
        """Encode the tokens of the prompt that leave the window at once; ``encode`` unless a method tells apart."""
        return self.encode(x, start)

    def extend(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        """Add tokens to the blocks of a stream and return what attention reads of them from now on."""
        blocks.append(self.encode(x, start))
        return self.decode(blocks[-1])

    def observe(self, blocks: list[Block], queries: Tensor, attention: Tensor, start: int) -> Patch | None:
        """Look back on a step and re-encode, from the original values, what the method now stores differently.

        queries (layers, query_heads, fresh, head_dim) after RoPE, attention (layers, query_heads, fresh, tokens) of the
        step's own tokens over the whole cache; ``start`` is the position of the first stored token. Blocks are replaced
        in the list, never changed.
        """
        return None

    def remarks(self, blocks: list[Block]) -> tuple[str, ...]:
        """What the lane's card should say of the blocks as they stand."""
        return ()

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        """How the stored codes are used, for the views; names and shapes as in the record, over the codec's layers.

        code_counts (layers, kv_heads or 1, codebooks, codes); symmetric_share, outlier_share (layers, kv_heads);
        latent_bits (layers, kv_heads * head_dim). A codec gives what it has.
        """
        return {}

    @abstractmethod
    def decode(self, block: Block) -> Tensor:
        """The only thing attention ever reads: float32 (layers, kv_heads, tokens, head_dim)."""

    @abstractmethod
    def bits(self, block: Block) -> Tensor:
        """Stored bits of each element, metadata included, broadcastable to (layers, kv_heads, tokens, channels).

        Dimensions along which the width is constant have size 1; ``channels`` may be the number of equal channel
        groups instead of head_dim.
        """


def layer_slices(x: Tensor, elements: int = 1 << 20) -> Iterator[slice]:
    """Slices of the layers of x (layers, ...) of about ``elements`` each, so that intermediates stay in the cache.

    On a CPU, elementwise passes over a whole prompt's keys are several times slower than the same passes layer by
    layer: each of them writes fresh memory. A GPU takes all layers at once.
    """
    step = x.shape[0] if x.is_cuda else max(1, elements * x.shape[0] // max(1, x.numel()))
    return (slice(start, min(start + step, x.shape[0])) for start in range(0, x.shape[0], step))


def count_codes(codes: Tensor, count: int) -> Tensor:
    """How often each of ``count`` codes occurs in the last dimension of integer codes (..., n): (..., count) int32."""
    rows = codes.reshape(-1, codes.shape[-1])  # each by itself and as it is: wider copies cost ten times the counting
    found = torch.stack([torch.bincount(row, minlength=count) for row in rows])
    return found.view(*codes.shape[:-1], count).int().cpu()


@dataclass(frozen=True)
class GroupCodec(Codec):
    """Asymmetric quantization in groups of ``group_size`` along tokens (per channel) or channels (per token).

    axis "tokens" shares a scale among ``group_size`` consecutive tokens of one channel, axis "channels" among
    consecutive channels of one token, inside a head. Codes are packed along the grouped axis, scales and zero-points
    kept in ``metadata``.
    """

    bits_per_code: int
    group_size: int
    axis: Literal["tokens", "channels"]
    metadata: torch.dtype = torch.float16
    shared: dict[str, Tensor] = field(default_factory=dict)

    def encode(self, x: Tensor, start: int) -> Block:
        parts = []
        for layers in layer_slices(x):
            coded = self.code(x[layers], layers)
            parts.append((pack(coded.codes, self.bits_per_code), coded.scales, coded.zeros))
        codes, scales, zeros = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Block(x.shape[-2], {"codes": codes, "scales": scales, "zeros": zeros})

    def packed(self, path: Path) -> Packed:
        # a store has no place for shared tensors
        return Packed(partial(GroupRead, self, path), None if self.shared else Groups(self.grid, self.axis))

    @property
    def grid(self) -> Grid:
        """The grid of the groups."""
        return Grid(self.bits_per_code, self.group_size, "asymmetric", self.metadata, self.metadata)

    def code(self, x: Tensor, layers: slice) -> GroupCodes:
        """Quantize x, a slice of the layers, into codes laid out with the grouped axis last."""
        rows = x.transpose(-1, -2) if self.axis == "tokens" else x
        return quantize_groups(rows, self.bits_per_code, self.group_size, self.metadata)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        if not blocks:
            return {}
        codes = torch.cat([self.load(block).codes.flatten(2) for block in blocks], -1)  # most blocks are of one token
        counts = torch.cat([count_codes(codes[at], 1 << self.bits_per_code) for at in layer_slices(codes)])
        return {"code_counts": counts[:, :, None]}

    def load(self, block: Block) -> GroupCodes:
        """Unpacked codes of a block, grouped axis last."""
        t = block.tensors
        count = block.tokens if self.axis == "tokens" else self._channels(block)
        return GroupCodes(unpack(t["codes"], self.bits_per_code, count), t["scales"], t["zeros"])

    def _channels(self, block: Block) -> int:
        return block.tensors["codes"].shape[-1] * 8 // self.bits_per_code

    def decode(self, block: Block) -> Tensor:
        *outer, tokens, dim = self.shape(block)
        inner = (dim, tokens) if self.axis == "tokens" else (tokens, dim)  # in memory as the codes lie
        out = torch.empty(*outer, *inner, device=block.tensors["codes"].device)
        for layers in layer_slices(out):
            part = Block(block.tokens, {name: t[layers] for name, t in block.tensors.items()})
            out[layers] = dequantize_groups(self.load(part), self.group_size)
        return out.mT if self.axis == "tokens" else out

    def shape(self, block: Block) -> tuple[int, ...]:
        """(layers, kv_heads, tokens, head_dim) of a block once decoded."""
        codes = block.tensors["codes"]
        dim = codes.shape[2] if self.axis == "tokens" else self._channels(block)
        return (*codes.shape[:2], block.tokens, dim)

    def bits(self, block: Block) -> Tensor:
        stored = sum(block.nbytes.values()) * 8
        return torch.tensor(stored / prod(self.shape(block))).view(1, 1, 1, 1)
