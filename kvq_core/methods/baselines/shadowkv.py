"""ShadowKV (arXiv 2410.21465): low-rank keys before RoPE, of which landmarks choose the chunks that a step reads.

Source: ByteDance-Seed/ShadowKV, models/kv_cache.py, ShadowKVCache: get_svd, prefill_kv_cache and
get_retrieval_position_ids.
"""

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Literal, Self

import torch
from kvq_kernels import Path
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, bits_with_shared
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt, Space
from kvq_core.methods.svdq.latent import side_by_side, singular_vectors
from kvq_core.methods.svdq.selection import ChunkSelection, Selector, Sparsity

OUTLIERS = Field(
    48,
    ge=0,
    le=4096,
    title="Outlier chunks",
    description="Chunks always read, in fp16: 48 in the authors' tests of accuracy; empty: 24 for every 1024 tokens of "
    "budget, as their CPU cache has.",
)


class ShadowKvSelection(ChunkSelection):
    """``select = {by = "shadowkv"}``."""

    by: Literal["shadowkv"]
    outlier_chunks: int | None = OUTLIERS


@dataclass(frozen=True)
class LowRankCodec(Codec):
    """A prompt's keys before RoPE, heads side by side, in a basis: latent (layers, tokens, rank) in fp16. ``shared``:
    basis (layers, channels, rank) in fp16. Keys of outlier chunks and landmarks are kept beside them."""

    kv_heads: int
    selector: Selector
    shared: dict[str, Tensor] = field(default_factory=dict)

    def encode(self, x: Tensor, start: int) -> Block:
        rows, basis = side_by_side(x.float(), per_head=False)[:, 0], self.shared["basis"]
        latent = torch.stack([row @ own.float() for row, own in zip(rows, basis, strict=True)]).half()
        return Block(x.shape[-2], {"latent": latent, **self.selector.exact(x, start)})

    def decode(self, block: Block) -> Tensor:
        rows = zip(block.tensors["latent"], self.shared["basis"], strict=True)
        keys = torch.stack([latent.float() @ basis.float().mT for latent, basis in rows])
        heads = keys.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        return self.selector.put_back(heads, block.tensors)

    def bits(self, block: Block) -> Tensor:
        return bits_with_shared(block, self.shared, prod(self.shared["basis"].shape[:2]))

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)


class ShadowKv(Sparsity, Method):
    """The prompt's keys, before RoPE and with all heads of a layer side by side, are stored as the product of two fp16
    matrices of a low rank; each step rebuilds and reads few chunks of them, chosen by the chunks' mean keys.

    With rank r and d = kv_heads x head_dim channels, a key element of the prompt costs 16 r (1/d + 1/T) bits, and the
    landmarks, one mean key after RoPE a chunk, 16 / chunk_size more. A step takes a softmax over the landmarks for each
    query head and reads the budget's best chunks of each KV head, by the highest of the heads that share it, and always
    the outlier chunks, whose mean stands for one of their keys worst (lowest cosine), and the last chunks of the
    prompt; the latter two are stored in fp16. Generated tokens stay fp16 and are all read.

    Values stay fp16: the authors keep them in the host's memory and fetch those of the chosen chunks. The method trades
    bytes that a step reads for bytes stored: landmarks and outliers come on top. What it hurts: answers whose facts lie
    in more chunks than are read, and with a rank too low all keys alike. What it reads is also
    ``select = {by = "shadowkv"}`` beside any storage.
    """

    name: ClassVar[str] = "shadowkv"
    title: ClassVar[str] = "ShadowKV"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2410.21465"
    not_folded = "ShadowKV decomposes keys as they are; leave fold out"
    deviations: ClassVar[tuple[str, ...]] = (
        "U Σ and V are stored instead of U and Σ V: the product is the same, and fp16 cannot overflow; the authors "
        "store bf16.",
        "Σ and V are those of all keys of the prompt, as the authors' are, but rows of the local chunks are not stored "
        "in them, because these are kept in fp16.",
        "Scores of landmarks are scaled as the model scales its scores; the authors' code divides by √128 whatever the "
        "head.",
        "Chunks are clamped to those there are where a prompt is short, and the rank to the channels of a layer; the "
        "authors' code asks for longer prompts.",
        "budget_tokens is 256 where the authors read 2,048 of 128,000 tokens: prompts are shorter here.",
        "Values count in the cache, wherever they lie.",
    )

    rank: int = Field(
        160, ge=1, le=8192, title="Rank", description="Columns of the two factors; at most the channels of a layer."
    )
    outlier_chunks: int | None = OUTLIERS

    joint = True  # the rank is at most the channels of all heads

    @property
    def chooses(self) -> bool:
        return True

    @property
    def not_chunked(self) -> str | None:
        return "shadowkv chooses among the chunks of a prompt that has been read whole"

    @property
    def not_centred(self) -> str | None:
        return "ShadowKV decomposes keys as they are; leave center out"

    @property
    def key_space(self) -> Space:
        return "pre"

    def windows(self) -> tuple[Window, Window]:
        return Window(recent=self.recent, step=self.chunk_size, prompt_only=True), Window(step=None)

    def fit(self, prompt: Prompt) -> Fitted:
        assert prompt.rotated is not None
        keys = side_by_side(prompt.keys, per_head=False)
        channels, tokens = keys.shape[-1], keys.shape[-2]
        rank = min(self.rank, channels)
        uncentred = torch.zeros(*keys.shape[:2], channels, dtype=torch.float16, device=keys.device)
        basis = singular_vectors(keys, uncentred)[:, 0, :, :rank].contiguous()
        selector = Selector.of_prompt(prompt.rotated, self, prompt.scaling)
        cost = 16 * rank * (1 / channels + 1 / tokens)
        notes = [
            f"rank {rank} of {channels} channels costs 16·{rank}·(1/{channels} + 1/{tokens}) = {cost:.2f} bits a key "
            "element of the prompt, without landmarks and outlier chunks",
            selector.note(tokens),
        ]
        return Fitted(
            LowRankCodec(prompt.keys.shape[1], selector, {"basis": basis}), None, tuple(notes), selector.select
        )

    def as_stored(self, parts: dict[str, float], shape: ModelShape) -> Self:
        return self.kept(parts, shape.kv_heads)

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        """Basis and outlier chunks."""
        channels = shape.kv_heads * shape.head_dim
        return 2 * channels * min(self.rank, channels) + self.chunk_bytes(shape.kv_heads, shape.head_dim), 0

    def exact_bytes(self, shape: ModelShape, tokens: int) -> tuple[int, int]:
        return self.chunk_bytes(shape.kv_heads, shape.head_dim, tokens), 0

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return f"{self.name} r{self.rank}"

    def summary(self) -> str:
        return f"K rank {self.rank} · V untouched · reads {self.budget_tokens} tokens"
