"""Operations on packed caches: each has a plain-torch reference, and the fused ones a Triton kernel for GPUs.

The package lives in ``kernels/kvq_kernels`` and not in ``kernels`` itself: Hugging Face ships a distribution named
``kernels`` which transformers imports, and a regular package of that name at the top level would shadow it.
``kvq_core/__init__.py`` is the one place that makes this package importable. It needs torch and nothing else: triton is
imported by an operation that runs a kernel.
"""

from kvq_kernels.attention import decode_attention
from kvq_kernels.commuted import codebook_scores, codebook_values
from kvq_kernels.dispatch import KernelError, Path, paths_taken
from kvq_kernels.gemv import packed_scores, packed_values
from kvq_kernels.ggml import q8_0, round_q8_0, round_q8_0_at_once
from kvq_kernels.grouped import Grid, PackedGroups, quantize_pack, unpack_dequantize
from kvq_kernels.latent import LatentKeys, latent_dense, latent_scores
from kvq_kernels.layout import Layout
from kvq_kernels.midpoint import midpoint_codes, midpoint_values
from kvq_kernels.mixed import MixedTokens, mixed_dense, mixed_scores, mixed_values, unit_values
from kvq_kernels.packing import pack, packed_bytes, unpack
from kvq_kernels.quantize import GroupCodes, dequantize_groups, quantize_groups
from kvq_kernels.rotation import Turn, rotate
from kvq_kernels.rows import join
from kvq_kernels.signed import (
    HybridCodes,
    SignedCodes,
    dequantize_hybrid,
    dequantize_signed,
    quantize_hybrid,
    quantize_signed,
)
from kvq_kernels.squat import squat_codes, squat_quantize
from kvq_kernels.step import counting, decode_step, same_launches, uncounted
from kvq_kernels.store import Mark, Store

__all__ = [
    "Grid",
    "GroupCodes",
    "HybridCodes",
    "KernelError",
    "LatentKeys",
    "Layout",
    "Mark",
    "MixedTokens",
    "PackedGroups",
    "Path",
    "SignedCodes",
    "Store",
    "Turn",
    "codebook_scores",
    "codebook_values",
    "counting",
    "decode_attention",
    "decode_step",
    "dequantize_groups",
    "dequantize_hybrid",
    "dequantize_signed",
    "join",
    "latent_dense",
    "latent_scores",
    "midpoint_codes",
    "midpoint_values",
    "mixed_scores",
    "mixed_dense",
    "mixed_values",
    "pack",
    "packed_bytes",
    "packed_scores",
    "packed_values",
    "paths_taken",
    "q8_0",
    "quantize_groups",
    "quantize_hybrid",
    "quantize_pack",
    "quantize_signed",
    "rotate",
    "round_q8_0",
    "round_q8_0_at_once",
    "same_launches",
    "squat_codes",
    "squat_quantize",
    "uncounted",
    "unit_values",
    "unpack",
    "unpack_dequantize",
]
