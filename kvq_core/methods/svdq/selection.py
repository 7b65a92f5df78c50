"""Sparse attention over a quantized prompt: before every softmax, the chunks of keys worth reading are chosen."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.errors import MethodError
from kvq_core.frozen import Frozen
from kvq_core.methods.base import Fitted, KeySelection, Prompt
from kvq_core.methods.numbers import no_truth


class Sparsity(Frozen):
    """ShadowKV's selection: landmarks choose chunks of the prompt anew at every step, per KV head."""

    _no_truth = no_truth

    chunk_size: int = Field(
        8, ge=1, le=256, title="Chunk size", description="Tokens of a chunk, read or left out together."
    )
    budget_tokens: int = Field(
        256, ge=1, le=1 << 17, title="Budget tokens", description="Tokens of the chunks chosen at a step."
    )
    outlier_chunks: int | None = Field(
        None,
        ge=0,
        le=4096,
        title="Outlier chunks",
        description="Chunks always read, in fp16; empty: 24 for every 1024 tokens of budget.",
    )
    local_chunks: int = Field(
        4, ge=0, le=1024, title="Local chunks", description="Last chunks of the prompt, always read, in fp16."
    )

    @property
    def outliers(self) -> int:
        return -(-24 * self.budget_tokens // 1024) if self.outlier_chunks is None else self.outlier_chunks

    @property
    def recent(self) -> int:
        """Tokens of the local chunks; what does not fill a chunk stays beside them."""
        return self.local_chunks * self.chunk_size

    def chunks(self, tokens: int) -> int:
        """Chunks of a prompt that are neither local nor incomplete."""
        return max(0, tokens - self.recent) // self.chunk_size

    def chunk_bytes(self, kv_heads: int, head_dim: int, tokens: int | None = None) -> int:
        """Of a layer's outlier chunks, kept in fp16, and of their numbers; of a prompt that may have fewer."""
        count = self.outliers if tokens is None else min(self.outliers, self.chunks(tokens))
        return count * kv_heads * (2 * self.chunk_size * head_dim + 4)

    def kept(self, parts: dict[str, float], kv_heads: int) -> Self:
        """With as many outlier chunks as were kept, by what a run stored of a layer."""
        outliers = round(parts.get("key_outlier_chunks", 0) / (4 * kv_heads))
        return self.model_copy(update={"outlier_chunks": outliers})


class ChunkSelection(Sparsity, KeySelection):
    """A lane's selection that chooses chunks of the prompt; outlier chunks and the last are stored as the lane stores
    all others."""

    decoding: ClassVar[bool] = True

    def fit(self, prompt: Prompt, tokens: int) -> Fitted:
        assert prompt.rotated is not None
        selector = Selector.of_prompt(prompt.rotated, self, prompt.scaling)
        return Fitted(None, None, (selector.note(prompt.keys.shape[-2]),), selector.select)

    def summary(self) -> str:
        return f"{self.by} {self.budget_tokens} tokens, {self.outliers} outlier chunks"


class SvdqSelection(ChunkSelection):
    """``select = {by = "svdq"}``: what SVDq's ``sparsity`` reads, beside any storage."""

    by: Literal["svdq"]


@dataclass(frozen=True)
class Selector:
    """The chunks of one prompt: landmarks (layers, kv_heads, chunks, head_dim), the means of keys after RoPE, in fp16,
    and outliers (layers, kv_heads, count), the chunks their landmark stands for worst (lowest minimum cosine).
    ``scaling``: what the model multiplies scores with, by layer."""

    sparsity: Sparsity
    landmarks: Tensor
    outliers: Tensor
    scaling: tuple[float, ...]

    @classmethod
    def of_prompt(cls, keys: Tensor, sparsity: Sparsity, scaling: tuple[float, ...]) -> "Selector":
        """From the prompt's keys after RoPE (layers, kv_heads, tokens, head_dim)."""
        count = sparsity.chunks(keys.shape[-2])
        chunks = keys[..., : count * sparsity.chunk_size, :].unflatten(-2, (count, sparsity.chunk_size))
        landmarks = chunks.mean(-2).half()
        alike = torch.cosine_similarity(landmarks.float().unsqueeze(-2), chunks, -1).amin(-1)
        outliers = alike.topk(min(sparsity.outliers, count), -1, largest=False).indices
        return cls(sparsity, landmarks, outliers, scaling)

    @property
    def chosen(self) -> int:
        """Chunks a step chooses by their landmarks."""
        left = self.landmarks.shape[-2] - self.outliers.shape[-1]
        return min(self.sparsity.budget_tokens // self.sparsity.chunk_size, left)

    def note(self, tokens: int) -> str:
        """Keys touched a step, told apart from stored bits."""
        always = self.outliers.shape[-1] * self.sparsity.chunk_size
        local = tokens - self.landmarks.shape[-2] * self.sparsity.chunk_size
        chosen = self.chosen * self.sparsity.chunk_size
        touched = chosen + always + local
        return (
            f"a step touches {touched} of the prompt's {tokens} keys ({touched / tokens:.0%}): {chosen} chosen, "
            f"{always} of outlier chunks, {local} local; the others are stored all the same"
        )

    def outlier_tokens(self) -> Tensor:
        """Positions of the tokens of outlier chunks, (layers, kv_heads, count * chunk_size)."""
        within = torch.arange(self.sparsity.chunk_size, device=self.outliers.device)
        return (self.outliers[..., None] * self.sparsity.chunk_size + within).flatten(-2)

    def exact(self, x: Tensor, start: int) -> dict[str, Tensor]:
        """What is stored of a prompt's encoded keys x beside their codes: keys of outlier chunks as they are, which
        chunks they are, and the landmarks.

        Raises MethodError where x does not begin with the chunks.
        """
        if start or x.shape[-2] < self.landmarks.shape[-2] * self.sparsity.chunk_size:
            raise MethodError(
                "chunks are those of one prompt, with windows of their own: leave the lane's sink_tokens and "
                "recent_tokens empty, and give a prompt of one turn."
            )
        at = self.outlier_tokens()[..., None].expand(-1, -1, -1, x.shape[-1])
        chunks = self.outliers.to(torch.int32)
        return {"outlier_keys": x.gather(-2, at).half(), "outlier_chunks": chunks, "landmarks": self.landmarks}

    def put_back(self, decoded: Tensor, stored: dict[str, Tensor]) -> Tensor:
        """Decoded keys with those of outlier chunks as they are."""
        at = self.outlier_tokens()[..., None].expand(-1, -1, -1, decoded.shape[-1])
        return decoded.scatter(-2, at, stored["outlier_keys"].float())

    def select(self, layer: int, queries: Tensor, tokens: int) -> Tensor:
        """Keys a step reads, bool (kv_heads, tokens): chosen and outlier chunks and all that follows the chunks.

        queries (query_heads, fresh, head_dim) after RoPE. A softmax over the landmarks per query head, summed over the
        queries; the best chunks by the maximum over the heads that share a KV head.
        """
        landmarks, outliers = self.landmarks[layer].float(), self.outliers[layer]
        heads, count = landmarks.shape[:2]
        scores = queries.unflatten(0, (heads, -1)).flatten(1, 2) @ landmarks.transpose(-1, -2) * self.scaling[layer]
        scores.scatter_(-1, outliers[:, None].expand(-1, scores.shape[1], -1), float("-inf"))  # not in the list
        fresh = queries.shape[1]
        weights = scores.softmax(-1).nan_to_num(0).unflatten(1, (-1, fresh)).sum(2).amax(1)  # (kv_heads, chunks)
        read = torch.zeros(heads, count, dtype=torch.bool, device=queries.device)
        weights.scatter_(-1, outliers, -1.0)
        read.scatter_(-1, weights.topk(self.chosen, -1).indices, True).scatter_(-1, outliers, True)
        rest = tokens - count * self.sparsity.chunk_size
        return torch.cat([read.repeat_interleave(self.sparsity.chunk_size, -1), read.new_ones(heads, rest)], -1)
