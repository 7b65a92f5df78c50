"""OSCAR: 2-bit codes behind a rotation fitted to what attention reads."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, Method, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.rotated_int2 import RotatedInt2
from kvq_core.methods.widths import RECENT, SINK

RIDGE = 1e-6  # of the mean eigenvalue, where too few rows leave directions undecided
SCALES = {"float16": torch.float16, "float32": torch.float32}
Target = Literal["qqt", "ktk", "hadamard"]


def fitted_rotation(covariance: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Eigenvectors of covariances (layers, d, d) float64 of so many ``rows``, times the Hadamard matrix, in the order
    of the authors' bit reversal (compute_kv_rotation.py, r_h_pbr), and the eigenvalues, ascending; both float32."""
    dim = covariance.shape[-1]
    if rows < dim:
        mean = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None]
        rising = torch.linspace(1, 2, dim, dtype=covariance.dtype, device=covariance.device)
        covariance = covariance + torch.diag_embed(RIDGE * mean * rising)
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    reversed_bits = torch.tensor([int(f"{i:0{dim.bit_length() - 1}b}"[::-1], 2) for i in range(dim)])
    order = torch.empty(dim, dtype=torch.long)
    order[reversed_bits] = torch.arange(dim - 1, -1, -1)  # the largest first
    mixed = vectors.float() @ Hadamard.of(dim, covariance.device).matrix
    return mixed[..., order.to(mixed.device)].contiguous(), values.float()


def covariances(prompt: Prompt, target: Target) -> tuple[Tensor, Tensor]:
    """Of what keys and values are to be rotated by, float64 (layers, d, d), means over a layer's KV heads.

    qqt: of queries, and of values each weighted by its key's k QᵀQ kᵀ over the mean of these, squared scores before the
    softmax. ktk: of keys and of values.
    """
    keys, values = prompt.keys if prompt.rotated is None else prompt.rotated, prompt.values
    tokens = keys.shape[-2]
    if target == "ktk":
        own = (torch.stack([layer.mT @ layer for layer in map(Tensor.double, x)]) for x in (keys, values))
        of_keys, of_values = (each.mean(1) / tokens for each in own)
        return of_keys, of_values
    assert prompt.queries is not None
    grams = prompt.query_gram() / (prompt.queries.shape[1] // keys.shape[1] * tokens)
    weighted = []
    for k, v, gram in zip(keys, values, grams, strict=True):
        k, v = k.double(), v.double()
        weights = ((k @ gram) * k).sum(-1)
        weights = weights / weights.mean(-1, keepdim=True).clamp_min(1e-12 / tokens)
        weighted.append((v.mT @ (v * weights[..., None])).mean(0) / tokens)
    return grams.mean(1), torch.stack(weighted)


def engine_file(codec: RotatedInt2, layers: tuple[int, ...], objective: str) -> dict[str, Any]:
    """The rotations of these layers of a model as SGLang's load_oscar_rotations reads them with torch.load."""
    assert codec.eigenvalues is not None
    kept = zip(layers, codec.shared["rotation"], codec.eigenvalues, strict=True)
    by_layer = {layer: {"layer_id": layer, "rotation": r, "eigenvalues": values} for layer, r, values in kept}
    return {"format_version": 1, "objective": objective, "source_grouping": "layer", "layers": by_layer}


class Oscar(Method):
    """2-bit codes of a token and KV head behind a rotation of its layer, with the largest magnitudes clipped: the
    eigenvectors of what attention reads, mixed by a Hadamard transform.

    Keys are rotated by the queries' covariance, values by their own with each token weighted by its squared scores. A
    rotation takes 4 head_dim bytes for each channel of a layer, keys and values each, and a token a scale and a zero a
    head: with head_dim 128 and float16 2.25 bits an element, with float32, as the serving recipe has it, 2.5. The first
    64 tokens and the newest 256 stay in fp16, which at short prompts is most of what is stored.
    On normal numbers clipping alone halves the error: compare target = hadamard, and clips of 1, before crediting the
    covariances.
    """

    name: ClassVar[str] = "oscar"
    title: ClassVar[str] = "OSCAR"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2605.17757"
    home: ClassVar[Home | None] = Home("SGLang", 2048, "raw")
    deviations: ClassVar[tuple[str, ...]] = (
        "The rotation is fitted on the prompt instead of 30,000 tokens of calibration texts: it has seen the tokens it "
        "stores, and no query that comes later.",
        "Rows are rotated in float32; the engine rotates in bfloat16, and folds the values' rotation into the weights.",
        "Covariances of fewer rows than head_dim get a small ridge, so that all directions are decided.",
        "A row that is constant once rotated is its own scale where float16 cannot hold its zero; there it is lost.",
    )

    target: Target = Field(
        "qqt",
        title="Target",
        description="Covariances: qqt of queries and score-weighted values; ktk of keys and values; hadamard: none.",
    )
    clip_key: float = Field(
        0.96, ge=0.5, le=1, title="Clip keys", description="Share of a row's magnitudes that is not clipped; 1: all."
    )
    clip_value: float = Field(0.92, ge=0.5, le=1, title="Clip values", description="The same of values.")
    scale_dtype: Literal["float16", "float32"] = Field(
        "float16", title="Scale dtype", description="Of scales and zeros; the serving recipe takes float32."
    )
    lloyd_max: bool = Field(
        False,
        title="Lloyd-Max",
        description="Thresholds of a normal distribution instead of even steps over the range.",
    )
    sink_tokens: int = Field(
        64,
        ge=0,
        le=1024,
        title="Sink tokens",
        json_schema_extra=SINK,
        description="First tokens of the prompt, never quantized.",
    )
    recent_tokens: int = Field(
        256,
        ge=0,
        le=4096,
        title="Recent tokens",
        json_schema_extra=RECENT,
        description="Newest tokens kept in full precision.",
    )

    @property
    def needs_queries(self) -> bool:
        return self.target == "qqt"

    @property
    def not_rotated(self) -> str | None:
        return "it rotates what it stores itself"

    def windows(self) -> tuple[Window, Window]:
        window = Window(sink=self.sink_tokens, recent=self.recent_tokens, step=1)
        return window, window

    def why_not(self, shape: ModelShape) -> str | None:
        if shape.head_dim & (shape.head_dim - 1) or shape.head_dim < 4:
            return f"head_dim = {shape.head_dim} is no power of two from 4 on, and heads are turned whole"
        return None

    def fit(self, prompt: Prompt) -> Fitted:
        clips, dtype = (self.clip_key, self.clip_value), SCALES[self.scale_dtype]
        if self.target == "hadamard":
            turn = Hadamard.of(prompt.keys.shape[-1], prompt.keys.device)
            fixed = [RotatedInt2(turn, clip, self.lloyd_max, dtype) for clip in clips]
            return Fitted(fixed[0], fixed[1])
        heads, tokens, dim = prompt.keys.shape[1:]
        asked = heads if prompt.queries is None else prompt.queries.shape[1]
        codecs = []
        for clip, covariance, rows in zip(
            clips, covariances(prompt, self.target), (asked * tokens, heads * tokens), strict=True
        ):
            rotation, values = fitted_rotation(covariance, rows)
            shared = {"rotation": rotation}
            codecs.append(RotatedInt2(None, clip, self.lloyd_max, dtype, shared, values))
        share = 32 * dim / (heads * tokens)
        notes = [
            f"prompt-only: its rotations are fitted on this prompt, where the engine has calibrated ones; they are "
            f"counted, 32 head_dim / (kv_heads T) = {share:.2g} bits an element of the prompt"
        ]
        if heads * tokens < dim:
            notes.append(f"{heads * tokens} rows of values do not span {dim} channels: the rest is rotated as it falls")
        return Fitted(codecs[0], codecs[1], tuple(notes))

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        rotation = 0 if self.target == "hadamard" else 4 * shape.head_dim**2
        return rotation, rotation

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        how = (
            "--kv-cache-dtype int2 --kv-cache-quant-group-size 128 --prefill-attention-backend fa3 "
            "--decode-attention-backend triton"
        )
        said = (
            "Pull request 32129, open, with the environment its README lists: rotations come from files calibrated "
            "beforehand, windows are 32 and 128 tokens unless it says otherwise. Heads of 128."
        )
        return (Elsewhere("SGLang", how, said),)

    def summary(self) -> str:
        clips = f"clip K {self.clip_key:g} V {self.clip_value:g}"
        levels = " · Lloyd-Max" if self.lloyd_max else ""
        return f"2 bits · {self.target} · {clips}{levels} · {self.sink_tokens} sinks · window {self.recent_tokens}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return self.name if self.target == "qqt" else f"{self.name} {self.target}"
