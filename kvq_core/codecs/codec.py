"""Codecs: how one tensor (the keys or the values) of a lane is stored.

Shapes throughout: (layers, kv_heads, tokens, head_dim) for keys and values, (layers, query_heads, tokens, head_dim)
for queries. All layers of one lane that live on one device are encoded together.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from kvq_kernels import Path
from torch import Tensor

from kvq_core.codecs.blocks import Block, Patch
from kvq_core.codecs.forms import Packed
from kvq_core.errors import MethodError


class Codec(ABC):
    """Encodes blocks of one tensor and decodes them; everything it needs was fitted on the prompt.

    ``shared`` holds tensors stored once per lane beside the blocks (a basis, norms); they count as stored bytes.
    """

    shared: dict[str, Tensor] = {}
    observes: bool = False  # whether ``observe`` is to be called after every step
    layerwise: bool = False  # whether a layer's blocks follow from what ``observe`` is shown of that layer alone
    rewrites: bool = False  # whether ``extend`` stores anew what is stored already, and returns all of it
    enters: torch.dtype = torch.float16  # what a generated token is rounded to before it is encoded, without a window

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

    def extend_prompt(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        """``extend`` by tokens of a prompt that enters in chunks: they are encoded as a prompt's are."""
        blocks.append(self.encode_prompt(x, start))
        return self.decode(blocks[-1])

    def begun(self, tokens: int) -> "Codec":
        """This codec, fitted as it is, for a prompt of which the first ``tokens`` enter now and the others later."""
        return self

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        """What attention would read of x (1, kv_heads, tokens, head_dim), tokens of one of its layers, once stored.

        Only of methods that say their codes are a token's alone (Method.token_local).
        """
        return self.decode(self.encode(x, start))

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
    step = x.shape[0] if x.device.type != "cpu" else max(1, elements * x.shape[0] // max(1, x.numel()))
    return (slice(start, min(start + step, x.shape[0])) for start in range(0, x.shape[0], step))


def of_layer(tensors: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """Of tensors whose first dimension is layers, those of one."""
    return {name: tensor[layer : layer + 1] for name, tensor in tensors.items()}


def bits_with_shared(block: Block, shared: dict[str, Tensor], elements: int) -> Tensor:
    """Stored bits of each element (1, 1, 1, 1) of a prompt's one block, which carries all that is shared; ``elements``
    of a token over all layers."""
    stored = sum(block.nbytes.values()) + sum(t.numel() * t.element_size() for t in shared.values())
    return torch.tensor(8 * stored / (elements * block.tokens)).view(1, 1, 1, 1)


def count_codes(codes: Tensor, count: int) -> Tensor:
    """How often each of ``count`` codes occurs in the last dimension of integer codes (..., n): (..., count) int32."""
    rows = codes.reshape(-1, codes.shape[-1])  # each by itself and as it is: wider copies cost ten times the counting
    found = torch.stack([torch.bincount(row, minlength=count) for row in rows])
    return found.view(*codes.shape[:-1], count).int().cpu()
