"""OSCAR: 2-bit codes behind a rotation fitted to what attention reads."""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kvq_core.codebooks.files import NAME
from kvq_core.codebooks.lookup import CodebookNeed, find_codebook, require
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.window import Window
from kvq_core.engines import UNRELEASED
from kvq_core.methods.base import Fitted, Method, ModelRef, ModelShape, Prompt
from kvq_core.methods.deployments import Elsewhere, Home
from kvq_core.methods.formats.fitted_rotation import covariances, fitted_rotation
from kvq_core.methods.formats.rotated_int2 import RotatedInt2
from kvq_core.methods.widths import RECENT, SINK

SCALES = {"float16": torch.float16, "float32": torch.float32}
Target = Literal["qqt", "ktk", "hadamard"]


class Oscar(Method):
    """2-bit codes of a token and KV head behind a rotation of its layer, with the largest magnitudes clipped: the
    eigenvectors of what attention reads, mixed by a Hadamard transform.

    Keys are rotated by the queries' covariance, values by their own with each token weighted by its squared scores. A
    rotation takes 4 head_dim bytes for each channel of a layer, keys and values each; a calibrated one belongs to the
    model and is in no lane's bits (python -m kvq_core codebooks train --only rotations). A token takes a scale and a
    zero a head: with head_dim 128 and float16 2.25 bits an element, with float32, as the serving recipe has it, 2.5.
    The first 64 tokens and the newest 256 stay in fp16, which at short prompts is most of what is stored.
    On normal numbers clipping alone halves the error: compare target = hadamard, and clips of 1, before crediting the
    covariances.
    """

    name: ClassVar[str] = "oscar"
    title: ClassVar[str] = "OSCAR"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2605.17757"
    not_folded = "OSCAR's rotations are those of queries and keys as they are; leave fold out"
    home: ClassVar[Home | None] = Home("SGLang", "raw")
    deviations: ClassVar[tuple[str, ...]] = (
        "Without calibration the rotation is fitted on the prompt: it has seen the tokens it stores, and no query that "
        "comes later. Calibrated ones come from about 12,000 tokens; the authors take 30,000.",
        "Rows are rotated in float32; the engine rotates in bfloat16, and folds the values' rotation into the weights.",
        "Covariances of fewer rows than head_dim get a small ridge, so that all directions are decided.",
        "A row that is constant once rotated is its own scale where float16 cannot hold its zero; there it is lost.",
    )

    token_local = (True, True)

    target: Target = Field(
        "qqt",
        title="Target",
        description="Covariances: qqt of queries and score-weighted values; ktk of keys and values; hadamard: none.",
    )
    calibration: str | None = Field(
        None,
        pattern=NAME,
        title="Calibration",
        description="Name of rotations kept for the model, such as default; empty: fitted on this prompt.",
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.calibration is not None and self.target == "hadamard":
            raise ValueError("target = hadamard is the same for every model; leave calibration out.")
        return self

    @property
    def needs_queries(self) -> bool:
        return self.target == "qqt" and self.calibration is None

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
            key, value = (RotatedInt2(turn, clip, self.lloyd_max, dtype) for clip in clips)
            return Fitted(key, value)
        if self.calibration is not None:
            return self._calibrated(prompt, self.calibration)
        heads, tokens, dim = prompt.keys.shape[1:]
        asked = heads if prompt.queries is None else prompt.queries.shape[1]
        gram = None if prompt.queries is None else prompt.query_gram() / (asked // heads * tokens)
        own = covariances(prompt.keys if prompt.rotated is None else prompt.rotated, prompt.values, gram)
        codecs: list[RotatedInt2] = []
        for clip, covariance, rows in zip(clips, own, (asked * tokens, heads * tokens), strict=True):
            rotation = {"rotation": fitted_rotation(covariance, rows)[0]}
            codecs.append(RotatedInt2(None, clip, self.lloyd_max, dtype, rotation))
        notes = [
            f"prompt-only: its rotations are fitted on this prompt, where the engine has calibrated ones; they are "
            f"counted, 32 head_dim / (kv_heads T) = {32 * dim / (heads * tokens):.2g} bits an element of the prompt"
        ]
        if heads * tokens < dim:
            notes.append(f"{heads * tokens} rows of values do not span {dim} channels: the rest is rotated as it falls")
        return Fitted(codecs[0], codecs[1], tuple(notes))

    def _calibrated(self, prompt: Prompt, name: str) -> Fitted:
        """With the model's kept rotations. Raises MethodError naming the command that makes them."""
        heads, dim = prompt.keys.shape[1], prompt.keys.shape[-1]
        layers, model = prompt.layers or tuple(range(len(prompt.keys))), prompt.model
        id, weights = (model.id, model.weights_hash) if model else (None, None)
        book = require(self._wanted(name), id, weights, layers, heads, dim)
        kept = (book.tensors()[f"{kind}_rotation"] for kind in ("key", "value"))
        key, value = (rotations[list(layers)].to(prompt.keys.device) for rotations in kept)
        other = "" if book.info.weights_hash == weights else ", through other weights"
        note = f"calibrated on {book.info.train_tokens} tokens of {book.info.source}{other}: {book.info.file_name}"
        return Fitted(self._turned(key, self.clip_key), self._turned(value, self.clip_value), (note,))

    def _turned(self, rotation: Tensor, clip: float) -> RotatedInt2:
        """With a rotation that belongs to the model."""
        return RotatedInt2(None, clip, self.lloyd_max, SCALES[self.scale_dtype], kept=rotation)

    @property
    def learned(self) -> str | None:
        return None if self.calibration is None else "rotations"

    def sized(self, prompt: Prompt) -> Fitted:
        """Rotations that turn nothing where those of a model are read."""
        codec = self._turned(torch.eye(prompt.keys.shape[-1])[None], 1.0)
        return self.fit(prompt) if self.calibration is None else Fitted(codec, codec)

    def _wanted(self, name: str) -> CodebookNeed:
        assert self.target != "hadamard"  # which takes no calibration
        return CodebookNeed("rotations", name, 2, target=self.target)

    def data_hash(self, model: ModelRef) -> str | None:
        found = self.calibration and find_codebook(self._wanted(self.calibration), model.id, model.weights_hash)
        return found.info.content if found else None

    def lacks(self, model: ModelRef) -> tuple[CodebookNeed, ...]:
        wanted = self.calibration and self._wanted(self.calibration)
        return (wanted,) if wanted and find_codebook(wanted, model.id, model.weights_hash) is None else ()

    def fixed_bytes(self, shape: ModelShape) -> tuple[int, int]:
        rotation = 0 if self.target == "hadamard" or self.calibration else 4 * shape.head_dim**2
        return rotation, rotation

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        how = (
            "--kv-cache-dtype int2 --kv-cache-quant-group-size 128 --prefill-attention-backend fa3 "
            "--decode-attention-backend triton"
        )
        said = (
            "Pull request 32129, open, with the environment its README lists: rotations come from calibrated files "
            "(python -m kvq_core codebooks export), windows are 32 and 128 tokens unless it says otherwise. Heads of "
            "128."
        )
        needs = "Needs an Ampere, Ada or Hopper GPU, as fa3 does."  # 0.5.23, layers/attention/attention_registry.py
        return (Elsewhere("SGLang", how, said, needs, UNRELEASED),)

    def summary(self) -> str:
        clips = f"clip K {self.clip_key:g} V {self.clip_value:g}"
        levels = " · Lloyd-Max" if self.lloyd_max else ""
        target = self.target if self.calibration is None else f"{self.target} calibrated"
        return f"2 bits · {target} · {clips}{levels} · {self.sink_tokens} sinks · window {self.recent_tokens}"

    def short(self, tensors: Literal["both", "keys", "values"] = "both") -> str:
        return self.name if self.target == "qqt" else f"{self.name} {self.target}"
