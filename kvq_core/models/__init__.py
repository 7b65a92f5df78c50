"""The only place that knows transformers."""

from kvq_core.models.load import LoadedModel, ModelChoice, available_models, load, wrap

__all__ = ["LoadedModel", "ModelChoice", "available_models", "load", "wrap"]
