"""The only place that knows transformers: loading, support, RoPE, lock step, packed caches.

Imports methods for the shapes they ask of a model, sizing, spec and kernels. Start at ``loader``, then ``source`` for
what a model id may be, ``gguf`` for files that are converted, ``lockstep`` for attention.
"""

from kvq_core.models.choice import ModelChoice, available_models, is_offered, with_model
from kvq_core.models.configuration import configuration_of, layers_of
from kvq_core.models.loaded import LoadedModel
from kvq_core.models.loader import in_memory, load, loaded_model, prepare, release, wrap
from kvq_core.models.outline import identity_of, outline
from kvq_core.models.source import conversion_progress

__all__ = [
    "LoadedModel",
    "ModelChoice",
    "available_models",
    "configuration_of",
    "conversion_progress",
    "identity_of",
    "in_memory",
    "is_offered",
    "layers_of",
    "load",
    "loaded_model",
    "outline",
    "prepare",
    "release",
    "with_model",
    "wrap",
]
