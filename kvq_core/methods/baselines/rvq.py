"""Residual vector quantization of groups of channels (VQLLM)."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from kvq_kernels import Path, pack, unpack
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, count_codes, of_layer
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt, Space
from kvq_core.methods.baselines.codebooks import SAMPLE, nearest_codes, sum_of_centres, train_codebooks
from kvq_core.methods.baselines.heads import join_heads, joint_grouping_why_not, part_heads
from kvq_core.methods.deployments import Elsewhere

GROUP = 32  # channels of a vector


class Rvq(Method):
    """Each vector of 32 consecutive channels of a token is stored as one code a step: the nearest entry of a codebook,
    then the nearest entry to what that leaves, and so on; what is read is the sum. Keys are those before RoPE.

    Stored: steps codes of log2(entries) bits a vector, steps x log2(entries) / 32 bits an element (256 entries and 8
    steps: 2 bits, 4 steps: 1 bit), and once a layer the codebooks in fp16, one a step for all heads and channel groups.
    They do not grow with the tokens, but weigh on short prompts: 131 kB a layer for keys and as much for values, the
    codes of 2,700 tokens of 192 channels.

    Calibrated on this prompt alone: the codebooks are k-means of its own vectors, where the paper trains them on other
    texts. Tokens generated later were not among them, and a short prompt has few vectors to learn from.
    """

    name: ClassVar[str] = "rvq"
    title: ClassVar[str] = "Residual VQ (prompt-only calibration)"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2410.15704"
    not_folded = "RVQ learns its codebooks from the prompt's keys as they are; leave fold out"
    deviations: ClassVar[tuple[str, ...]] = (
        "Calibrated on the prompt: k-means of at most 4,096 of its vectors a layer, four rounds, with a seed. The "
        "authors train on other texts, k-means first and then exponential moving averages.",
        "Codebooks are counted as stored, since they belong to this prompt; trained ones would belong to the model.",
        "Up to 256 entries, so that a code is at most a byte, as CommVQ's comparison sets it; the authors' code has "
        "1,024 or 2,048.",
        "A prompt with fewer vectors than entries has a codebook of as many entries as it has vectors.",
        "Vectors are 32 consecutive channels as they are, met by squared distance; the authors' code knows cosine "
        "distance, too, and, by recollection alone, scales vectors first and groups key channels that lie apart.",
    )

    token_local = (True, True)

    entries: Literal[2, 4, 8, 16, 32, 64, 128, 256] = Field(
        256, title="Entries", description="Entries of each step's codebook."
    )
    steps: int = Field(8, ge=1, le=32, title="Steps", description="Codebooks whose entries add up to a vector.")

    @property
    def key_space(self) -> Space:
        return "pre"

    joint = True  # codebooks are of all heads

    @property
    def from_data(self) -> str | None:
        return "entries of a codebook, at most one a vector of the prompt"

    def windows(self) -> tuple[Window, Window]:
        window = Window(recent=0, step=1)
        return window, window

    def why_not(self, shape: ModelShape) -> str | None:
        return joint_grouping_why_not(shape, GROUP, "a vector of channels")

    def fit(self, prompt: Prompt) -> Fitted:
        key, value = (self._codec(x) for x in (prompt.keys, prompt.values))
        _, heads, tokens, dim = prompt.keys.shape
        found = tokens * heads * dim // GROUP
        note = (
            f"prompt-only calibration: {key.shared['codebooks'].shape[2]} entries a step from {min(found, SAMPLE):,} "
            f"of the prompt's {found:,} vectors a layer"
        )
        return Fitted(key, value, (note,))

    def _codec(self, x: Tensor) -> "RvqCodec":
        books = [train_codebooks(vectors_of(layer[None])[0], self.entries, self.steps) for layer in x.float()]
        shared = {"codebooks": torch.stack(books)}
        return RvqCodec(self.entries.bit_length() - 1, x.shape[1], x.shape[-1], x.shape[-2], shared)

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        size = 2 * GROUP * self.steps * self.entries
        return size, size

    def as_stored(self, parts: dict[str, float], shape: ModelShape) -> Self:
        """With as many entries as the prompt had vectors for."""
        size = parts.get("key_codebooks", parts.get("value_codebooks"))
        changes: dict[str, Any] = {} if size is None else {"entries": round(size / (2 * GROUP * self.steps))}
        return self.model_copy(update=changes)

    def usage_bytes(self, shape: ModelShape, tokens: int) -> int:
        return shape.layers * (4 * tokens + 2 * 4 * self.steps * self.entries)

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code for torchtune's models; trains its codebooks on other texts."
        return (Elsewhere("authors' code", "https://github.com/iankur/vqllm", said),)

    def _bits(self) -> float:
        return self.steps * (self.entries.bit_length() - 1) / GROUP

    def summary(self) -> str:
        return f"K V {self._bits():g} bits · {self.entries} entries · {self.steps} steps · calibrated on the prompt"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} {self._bits():g}"


def vectors_of(x: Tensor) -> Tensor:
    """(layers, kv_heads, tokens, head_dim) -> (layers, n, GROUP): a token's vectors one after the other."""
    return join_heads(x)[:, 0].unflatten(-1, (-1, GROUP)).flatten(1, 2)


@dataclass(frozen=True)
class RvqCodec(Codec):
    """Codes of ``width`` bits. ``shared``: codebooks (layers, steps, entries, GROUP) in fp16."""

    width: int
    kv_heads: int
    head_dim: int
    prompt_tokens: int
    shared: dict[str, Tensor] = field()  # the class has one by default, a field has none

    def encode(self, x: Tensor, start: int) -> Block:
        found = [
            nearest_codes(z, books) for z, books in zip(vectors_of(x.float()), self.shared["codebooks"], strict=True)
        ]
        codes = torch.stack(found).unflatten(1, (x.shape[-2], -1)).flatten(2)  # (layers, tokens, vectors * steps)
        return Block(x.shape[-2], {"codes": pack(codes, self.width)})

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        own = replace(self, shared=of_layer(self.shared, layer))
        return own.decode(own.encode(x, start))

    def _codes(self, block: Block) -> Tensor:
        """(layers, tokens * vectors, steps)."""
        steps = self.shared["codebooks"].shape[1]
        count = self.kv_heads * self.head_dim // GROUP * steps
        return unpack(block.tensors["codes"], self.width, count).unflatten(-1, (-1, steps)).flatten(1, 2)

    def decode(self, block: Block) -> Tensor:
        codes = self._codes(block)
        read = torch.stack(
            [sum_of_centres(own, books) for own, books in zip(codes, self.shared["codebooks"], strict=True)]
        )
        return part_heads(read.flatten(1).unflatten(-1, (1, block.tokens, -1)), self.kv_heads)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        """How often each entry of each step's codebook is used."""
        if not blocks:
            return {}
        codes = torch.cat([self._codes(block) for block in blocks], 1).transpose(-1, -2)
        return {"code_counts": count_codes(codes, 1 << self.width)[:, None]}

    def bits(self, block: Block) -> Tensor:
        """Of the codes alone: the codebooks are stored once, whatever the tokens."""
        codes = block.tensors["codes"]
        stored = 8 * codes.shape[-1] / (self.kv_heads * self.head_dim)
        return torch.tensor(stored).view(1, 1, 1, 1)

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)
