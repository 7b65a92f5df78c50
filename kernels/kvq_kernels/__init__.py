"""Operations on packed caches.

The package lives in ``kernels/kvq_kernels`` and not in ``kernels`` itself: Hugging Face ships a distribution named
``kernels`` which transformers imports, and a regular package of that name at the top level would shadow it.
``kvq_core/__init__.py`` is the one place that makes this package importable.
"""

from kvq_kernels.packing import pack, packed_bytes, unpack
from kvq_kernels.quantize import GroupCodes, dequantize_groups, quantize_groups

__all__ = ["GroupCodes", "dequantize_groups", "pack", "packed_bytes", "quantize_groups", "unpack"]
