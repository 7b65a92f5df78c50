"""Running a model with its cache in packed form only: the layers, the cache for transformers, and measuring.

Imports what codecs declare as their packed form, kernels, engine, methods, models, pipeline, record and spec. Start at
``layer``.
"""

from kvq_core.packed.cache import packed_cache
from kvq_core.packed.measurement import LaneMeasurement, MeasureRequest, label_of, measure

__all__ = ["LaneMeasurement", "MeasureRequest", "label_of", "measure", "packed_cache"]
