"""Operations on packed caches.

The package lives in ``kernels/kvq_kernels`` and not in ``kernels`` itself: Hugging Face ships a distribution named
``kernels`` which transformers imports, and a regular package of that name at the top level would shadow it.
``kvq_core/__init__.py`` is the one place that makes this package importable.
"""

from kvq_kernels.midpoint import midpoint_codes, midpoint_values
from kvq_kernels.packing import pack, packed_bytes, unpack
from kvq_kernels.quantize import GroupCodes, dequantize_groups, quantize_groups
from kvq_kernels.signed import (
    HybridCodes,
    SignedCodes,
    dequantize_hybrid,
    dequantize_signed,
    quantize_hybrid,
    quantize_signed,
)

__all__ = [
    "GroupCodes",
    "HybridCodes",
    "SignedCodes",
    "dequantize_groups",
    "dequantize_hybrid",
    "dequantize_signed",
    "midpoint_codes",
    "midpoint_values",
    "pack",
    "packed_bytes",
    "quantize_groups",
    "quantize_hybrid",
    "quantize_signed",
    "unpack",
]
