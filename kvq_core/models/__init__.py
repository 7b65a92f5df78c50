"""The only place that knows transformers."""

from kvq_core.models.choice import ModelChoice, available_models, with_model
from kvq_core.models.loader import LoadedModel, load, loaded, wrap

__all__ = ["LoadedModel", "ModelChoice", "available_models", "load", "loaded", "with_model", "wrap"]
