"""CommVQ: additive codebooks that commute with RoPE for keys, learned binary codes for values."""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from kvq_core.codebooks.encoder import Encoder, from_stored
from kvq_core.codebooks.files import NAME, Kind
from kvq_core.codebooks.lookup import CodebookNeed, find_codebook, require
from kvq_core.codecs.window import Window
from kvq_core.methods.base import Fitted, ModelRef, ModelShape, Prompt, Space
from kvq_core.methods.commvq.codec import KeyCodec, ValueCodec
from kvq_core.methods.deployments import Elsewhere
from kvq_core.methods.widths import RECENT, BitsMethod

KINDS: tuple[Kind, ...] = ("keys", "values")


class CommVQ(BitsMethod):
    """Keys before RoPE are vector-quantized in residual stages whose codebooks commute with RoPE; values become binary
    digits of a learned encoder, read back through a linear codebook.

    Stored for keys: a pair of levels for each stage, head and group of channel pairs, R log2(levels) / pairs_per_group
    bits an element; for values: ``bits`` digits an element. Both keep one fp16 norm a token and layer, over all heads.
    Codebooks belong to the model and are trained once (python -m kvq_core codebooks train); they are listed beside the
    cache, in no lane's bits. Tokens leave the full-precision window a whole window at a time.
    """

    name: ClassVar[str] = "commvq"
    title: ClassVar[str] = "CommVQ"
    paper: ClassVar[str | None] = "https://arxiv.org/abs/2506.18879"
    not_folded = "CommVQ's codebooks were learned from keys as they are; leave fold out"
    deviations: ClassVar[tuple[str, ...]] = (
        "Value digits are the encoder's most likely ones; the authors' evaluation code samples them (Gumbel-softmax).",
        "16 levels, one group a head: exactly 1 or 2 bits, trained in minutes; the paper's 64 levels (11·6/64 = 1.03 "
        "bits) stay available.",
        "Codes are bit-packed; the authors' code keeps 16 bits a stage.",
        "Codebooks minimise the reconstruction error of about 12,000 tokens; the paper uses far more text, and trains "
        "value encoders inside the language model.",
        "Annealing temperatures are relative to the rms of each stage's data; the maximisation is solved in float64 "
        "with a ridge of 1e-6; unused levels move to where the error is (k-means++).",
    )

    token_local = (True, True)

    bits: Literal[1, 2] = Field(1, title="Bits", description="Bits an element, for keys and values alike.")
    key_bits: Literal[1, 2] | None = Field(None, title="Key bits", description="Bits of keys; empty means Bits.")
    value_bits: Literal[1, 2] | None = Field(None, title="Value bits", description="Bits of values; empty means Bits.")
    levels: Literal[4, 8, 16, 32, 64] = Field(
        16, title="Levels L", description="2-D vectors a stage and channel pair; a code names two: L² centres."
    )
    stages: int | None = Field(
        None, ge=1, le=64, title="Stages R", description="Residual stages of keys; empty: as many as the bits allow."
    )
    pairs_per_group: int | None = Field(
        None, ge=1, le=256, title="Pairs in a group g", description="RoPE pairs that share a code; empty: a whole head."
    )
    window: int = Field(
        128,
        ge=1,
        le=4096,
        title="Window",
        json_schema_extra=RECENT,
        description="Newest tokens kept in full precision until there are this many; then all are encoded.",
    )
    codebooks: str | None = Field(
        None, pattern=NAME, title="Codebooks", description="Name of a trained set; empty: the model's default ones."
    )

    @property
    def key_space(self) -> Space:
        return "pre"

    def windows(self) -> tuple[Window, Window]:
        return Window(recent=0, step=self.window), Window(recent=0, step=self.window)

    @property
    def not_centred(self) -> str | None:
        return "CommVQ's codebooks were learned from keys as they are; leave center out"

    @property
    def not_rotated(self) -> str | None:
        return "CommVQ's codebooks were learned from keys and values as they are; leave rotate out"

    def why_not(self, shape: ModelShape) -> str | None:
        if shape.head_dim % 2:
            return f"head_dim = {shape.head_dim} has no channel pairs"
        if self.pairs_per_group and (shape.head_dim // 2) % self.pairs_per_group:
            return f"pairs_per_group = {self.pairs_per_group} does not divide the {shape.head_dim // 2} pairs of a head"
        return None

    def fit(self, prompt: Prompt) -> Fitted:
        """Codecs from the model's codebooks. Raises MethodError naming the command that trains missing ones."""
        heads, head_dim = prompt.keys.shape[1], prompt.keys.shape[-1]
        layers, model = prompt.layers or tuple(range(prompt.keys.shape[0])), prompt.model
        id, weights = (model.id, model.weights_hash) if model else (None, None)
        keys, values = (require(self._wanted(kind), id, weights, layers, heads, head_dim) for kind in KINDS)
        distinct, device = torch.tensor(list(dict.fromkeys(layers))), prompt.keys.device
        theta = keys.tensors()["theta"][distinct, :, :, : self._wanted("keys").stages_of(head_dim)].to(device)
        encoder = from_stored(values.tensors(), distinct, device)
        if len(distinct) == 1:  # one layer for all: rows of a batch read the same codebooks
            theta = theta.expand(len(layers), *theta.shape[1:])
            encoder = Encoder(*(t.expand(len(layers), *t.shape[1:]) for t in vars(encoder).values()))
        value = ValueCodec(encoder, heads, prompt.metadata)
        other = ", through other weights" if keys.info.weights_hash != weights else ""
        note = f"codebooks trained on {keys.info.train_tokens} tokens of {keys.info.source}{other}"
        return Fitted(KeyCodec(theta, prompt.metadata), value, (note,))

    @property
    def learned(self) -> str:
        return "codebooks"

    def sized(self, prompt: Prompt) -> Fitted:
        """Codebooks of zeros: their sizes follow from the knobs."""
        layers, heads, _, dim = prompt.keys.shape
        wanted, channels = self._wanted("keys"), heads * prompt.values.shape[-1]
        pairs, digits = wanted.pairs or dim // 2, self.width("value") * channels
        theta = torch.zeros(layers, heads, dim // 2 // pairs, wanted.stages_of(dim), self.levels, pairs, 2).half()
        sizes = ((channels,), (channels, 1), (1,), (1, 2 * digits), (2 * digits,), (digits, channels))
        encoder = Encoder(*(torch.zeros(layers, *size) for size in sizes))
        return Fitted(KeyCodec(theta, prompt.metadata), ValueCodec(encoder, heads, prompt.metadata))

    def data_hash(self, model: ModelRef) -> str | None:
        found = [find_codebook(self._wanted(kind), model.id, model.weights_hash) for kind in KINDS]
        return "-".join(book.info.content for book in found if book) or None

    def lacks(self, model: ModelRef) -> tuple[CodebookNeed, ...]:
        return tuple(w for w in map(self._wanted, KINDS) if find_codebook(w, model.id, model.weights_hash) is None)

    def _wanted(self, kind: Kind) -> CodebookNeed:
        bits = self.width("key" if kind == "keys" else "value")
        return CodebookNeed(kind, self.codebooks, bits, self.levels, self.pairs_per_group, self.stages)

    def usage_bytes(self, shape: ModelShape, tokens: int) -> int:
        keys = self._wanted("keys")
        books = shape.head_dim // 2 // (keys.pairs or shape.head_dim // 2) * keys.stages_of(shape.head_dim) * 2
        digits = self.width("value") * shape.head_dim
        return shape.layers * 4 * (tokens + shape.kv_heads * (books * self.levels + 2 * digits))

    def summary(self) -> str:
        own = "" if self.codebooks is None else f" · codebooks {self.codebooks}"
        stages = "" if self.stages is None else f" · R {self.stages}"
        return f"K{self.width('key')} V{self.width('value')} · L {self.levels}{stages} · window {self.window}{own}"

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        said = "Research code with its own model classes; its codebooks are trained inside the language model."
        return (Elsewhere("authors' code", "https://github.com/UMass-Embodied-AGI/CommVQ", said),)
