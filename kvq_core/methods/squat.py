"""SQuat: key rounding errors kept orthogonal to the subspace the prompt's queries span."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from kvq_kernels import GroupCodes, PackedGroups, Path, squat_codes, squat_quantize
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.forms import Groups, Packed
from kvq_core.codecs.groups import GroupCodec, GroupRead
from kvq_core.codecs.window import Window
from kvq_core.errors import MethodError
from kvq_core.methods.base import Fitted, ModelShape, Prompt, Space
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.widths import ResidualMethod, grouping_why_not


class Squat(ResidualMethod):
    """KIVI's storage, with keys rounded block of channels by block of channels.

    After a block is rounded, the channels not yet rounded are shifted so that the whole error stays as orthogonal as
    possible to the prompt's query subspace (top subspace_rank right singular vectors scaled by their singular
    values); attention scores change less although single keys change more. Stored: what KIVI stores. The update
    matrices, fp32, are held once per lane and listed apart from the cache, as the paper's sizes leave them out.
    Paper: Proposition 1 and Algorithm 1; rope "pre" is the paper's SQuat_pre.
    """

    name: ClassVar[str] = "squat"
    title: ClassVar[str] = "SQuat"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2503.24358"
    scales = ("tokens", "channels")
    token_local = (False, True)
    deviations: ClassVar[tuple[str, ...]] = (
        "The block update uses the closed form -P_RR^-1 P_RT (one Cholesky solve a block) instead of Lemma 3's list of "
        "inverses; the two are equal in exact arithmetic.",
        "With rope = pre the subspace still comes from queries after RoPE: those sample the relative rotations a score "
        "applies to a key's error. The paper does not say; the authors' default does the same.",
        "block_size must divide head_dim; the authors' code fails otherwise.",
    )

    subspace_rank: int = Field(
        5,
        ge=1,
        le=256,
        title="Subspace rank r",
        description="Directions of the prompt's queries that key errors should avoid.",
    )
    regularization: float = Field(
        1e-3,
        ge=0,
        le=10,
        title="Regularization λ",
        description="Weight of orthogonality against closeness to the original key; 0 is KIVI.",
    )
    block_size: int | None = Field(
        None,
        ge=1,
        le=256,
        title="Block size g",
        description="Channels rounded together; empty means head_dim / 2, head_dim is KIVI. Smaller is more exact.",
    )
    rope: Literal["post", "pre"] = Field(
        "post", title="Keys stored", description="After RoPE (SQuat) or before it (SQuat_pre)."
    )

    @property
    def key_space(self) -> Space:
        return self.rope

    @property
    def needs_queries(self) -> bool:
        return True

    def windows(self) -> tuple[Window, Window]:
        return Window(recent=0, step=self.residual_length), Window(recent=self.residual_length, step=1)

    def why_not(self, shape: ModelShape) -> str | None:
        block = self.block_size
        if block is not None and shape.head_dim % block:
            return f"block_size = {block} does not divide head_dim = {shape.head_dim}; choose a divisor"
        return grouping_why_not(shape.head_dim, self.group_size)

    def fit(self, prompt: Prompt) -> Fitted:
        head_dim = prompt.keys.shape[-1]
        block = self.block_size or head_dim // 2 or 1
        gram, energy = subspace_gram(prompt.query_gram(), self.subspace_rank)
        # λ S1² / T: the same λ weighs more on a longer prompt; beyond 10 the paper's own ablation collapses.
        strength = self.regularization * energy.median().item() / prompt.keys.shape[-2]
        notes = [f"λ·S₁²/T = {strength:.2g} (median over heads)"]
        if strength >= 10:
            notes.append("regularization is in the range where the paper's ablation collapses; lower λ")
        key = SquatKeyCodec(
            self.width("key"),
            self.group_size,
            "tokens",
            prompt.metadata,
            updates=block_updates(gram, self.regularization, block),
            block=block,
        )
        return Fitted(key, GroupCodec(self.width("value"), self.group_size, "channels", prompt.metadata), tuple(notes))

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code with pinned versions; its `--method squat` is this project's rope = pre."
        return (Elsewhere("authors' code", "https://github.com/Red-Hat-AI-Innovation-Team/SQuat", said),)

    def summary(self) -> str:
        block = "g D/2" if self.block_size is None else f"g {self.block_size}"
        return f"{super().summary()} · r {self.subspace_rank} · λ {self.regularization:g} · {block} · {self.rope}-RoPE"


def subspace_gram(gram: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Q̂ᵀQ̂ of the top-``rank`` query subspace, Q̂ = diag(S) Vh (Section 3.2), and S1².

    gram QᵀQ (layers, kv_heads, head_dim, head_dim) float64 -> the same shape, and (layers, kv_heads). Eigenvectors of
    QᵀQ are the right singular vectors of Q and its eigenvalues their squares, so an eigenproblem of size head_dim
    replaces the SVD of all queries; a rank above the number of queries changes nothing, those eigenvalues are 0.
    """
    values, vectors = torch.linalg.eigh(gram)
    top = slice(max(0, values.shape[-1] - rank), None)
    kept = vectors[..., top] * values[..., None, top].clamp_min(0).sqrt()
    return kept @ kept.transpose(-1, -2), values[..., -1]


def block_updates(gram: Tensor, regularization: float, block: int) -> tuple[Tensor, ...]:
    """The matrices that carry a block's rounding error into the channels after it.

    With P = I + λ Q̂ᵀQ̂, T the block and R the channels after it, the minimiser of Proposition 1 over a block is
    k_R += -P_RR⁻¹ P_RT e_T, which equals the paper's B_t H_t (Lemma 3). Returned transposed for row vectors, one
    (layers, kv_heads, block, rest) float32 for each block but the last.
    """
    dim = gram.shape[-1]
    p = torch.eye(dim, dtype=gram.dtype, device=gram.device) + regularization * gram
    updates = []
    for end in range(block, dim, block):
        factor, info = torch.linalg.cholesky_ex(p[..., end:, end:])
        if info.any():
            raise MethodError(
                f"regularization = {regularization:g} makes the update singular on this prompt; lower it (at most 1)."
            )
        solved = torch.cholesky_solve(p[..., end:, end - block : end].contiguous(), factor)
        updates.append(-solved.transpose(-1, -2).float().contiguous())
    return tuple(updates)


@dataclass(frozen=True)
class SquatKeyCodec(GroupCodec):
    """KIVI's key store, filled by SQuat's rounding. ``updates`` as block_updates makes them, in fp32."""

    updates: tuple[Tensor, ...] = field(default=())
    block: int = 0

    @property
    def encoder_bytes(self) -> int:
        return sum(u.numel() * u.element_size() for u in self.updates)

    def packed(self, path: Path) -> Packed:
        def encode(x: Tensor, prompt: bool) -> PackedGroups:
            return squat_quantize(x, self.updates, self.block, self.grid, path)

        return Packed(partial(GroupRead, self, path), Groups(self.grid, self.axis, encode=encode))

    def code(self, x: Tensor, layers: slice) -> GroupCodes:
        return squat_codes(x, [update[layers] for update in self.updates], self.block, self.grid)
