"""Sizes that follow from formulas: codebooks (CommVQ, Tables 7 and 8) and memory while decoding (CommVQ, Figure 3)."""

from typing import Literal

from torch import Tensor

from kvq_core.claims.measures import Context, Measure, Numbers
from kvq_core.claims.sample import Sample
from kvq_core.codebooks.files import Kind
from kvq_core.codebooks.lookup import CodebookNeed, require
from kvq_core.frozen import Frozen
from kvq_core.methods.base import ModelShape

MIB = 1 << 20  # the paper's MB of codebooks


def value_codebook_mb(digits: int, channels: int) -> float:
    """Eq. 36: fp16 rows of a layer's ``channels``, one a binary digit."""
    return digits * channels * 2 / MIB


def key_codebook_mb(levels: int, stages: int, channels: int) -> float:
    """Eq. 37: a 2 x 2 matrix in fp16 for every level, stage and pair of a layer's ``channels``."""
    return 2 * 2 * levels * stages * channels / 2 * 2 / MIB


class PrintedCodebook(Frozen):
    """A cell of a paper's table of codebook sizes: ``digits`` of a value codebook, or ``levels`` and ``stages``."""

    name: str
    digits: int = 0
    levels: int = 0
    stages: int = 0
    printed_mb: float


class CodebookSizes(Measure):
    """A layer's codebooks by formula against what a paper prints, and ``cache_mb``, a layer's fp16 keys (or values) of
    ``tokens``."""

    reads_texts = False
    channels: int
    tokens: int
    rows: tuple[PrintedCodebook, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ("printed_mb", "formula_mb", "cache_mb")

    def cases(self, context: Context) -> dict[str, Numbers]:
        cache = 2 * self.channels * self.tokens / MIB
        return {r.name: {"printed_mb": r.printed_mb, "formula_mb": self._mb(r), "cache_mb": cache} for r in self.rows}

    def _mb(self, row: PrintedCodebook) -> float:
        if row.digits:
            return value_codebook_mb(row.digits, self.channels)
        return key_codebook_mb(row.levels, row.stages, self.channels)


class CodebookFiles(Measure):
    """The model's own codebooks of ``bits`` and ``levels``, MB (2^20) a layer as they are held, against the paper's
    formulas: ``key_held_mb``, ``key_formula_mb``, ``value_held_mb``, ``value_formula_mb``. The same for every text."""

    bits: Literal[1, 2]
    levels: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{kind}_{how}_mb" for kind in ("key", "value") for how in ("held", "formula"))

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        shape = context.model.shape
        channels, stages = shape.kv_heads * shape.head_dim, self._need("keys").stages_of(shape.head_dim)
        theta = self._tensors(context, shape, "keys")["theta"][:, :, :, :stages]
        rows = self._tensors(context, shape, "values")["codebook"]
        return {
            "key_held_mb": theta.numel() * theta.element_size() / shape.layers / MIB,
            "key_formula_mb": key_codebook_mb(self.levels, stages, channels),
            "value_held_mb": rows.numel() * rows.element_size() / shape.layers / MIB,
            "value_formula_mb": value_codebook_mb(self.bits * channels, channels),
        }

    def _need(self, kind: Kind) -> CodebookNeed:
        return CodebookNeed(kind, None, self.bits, self.levels, None, None)

    def _tensors(self, context: Context, shape: ModelShape, kind: Kind) -> dict[str, Tensor]:
        ref, layers = context.model.ref, range(shape.layers)
        return require(self._need(kind), ref.id, ref.weights_hash, layers, shape.kv_heads, shape.head_dim).tensors()


class PrintedMemory(Frozen):
    """What a paper says of the memory (GB of 10^9 bytes) of one decoding: that it ``is`` printed_gb, lies ``above`` it
    (out of memory), or ``below`` it (it ran)."""

    name: str
    tokens: int
    batch: int = 1
    bits: float
    says: Literal["is", "above", "below"]
    printed_gb: float


class DecodingMemory(Measure):
    """Memory of decoding by formula, weights and cache, against what a paper says: ``formula_gb``, ``printed_gb``, and
    ``off``, the factor by which the formula misses it; 1 where it does not."""

    reads_texts = False
    weights_gb: float
    layers: int
    kv_heads: int
    head_dim: int
    rows: tuple[PrintedMemory, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ("formula_gb", "printed_gb", "off")

    def cases(self, context: Context) -> dict[str, Numbers]:
        return {row.name: self._numbers(row) for row in self.rows}

    def _numbers(self, row: PrintedMemory) -> Numbers:
        elements = 2 * self.layers * self.kv_heads * self.head_dim * row.tokens * row.batch
        formula = self.weights_gb + elements * row.bits / 8e9
        over, under = formula / row.printed_gb, row.printed_gb / formula
        off = {"is": max(over, under), "above": max(1.0, under), "below": max(1.0, over)}[row.says]
        return {"formula_gb": formula, "printed_gb": row.printed_gb, "off": off}
