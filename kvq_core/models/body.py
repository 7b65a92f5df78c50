"""The layers of a causal language model, without its head."""

from typing import Any


def body_name(model: Any) -> str:
    """What a model calls them; of some the name that transformers keeps for it is another model's."""
    prefix = str(model.base_model_prefix)
    return prefix if hasattr(model, prefix) else "model"


def body(model: Any) -> Any:
    return getattr(model, body_name(model))
