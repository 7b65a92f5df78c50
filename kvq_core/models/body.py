"""The layers of a causal language model, without its head."""

from typing import Any


def body_name(model: Any) -> str:
    """What a model calls them; of some the name that transformers keeps for it is another model's."""
    prefix = str(model.base_model_prefix)
    return prefix if hasattr(model, prefix) else "model"


def body(model: Any) -> Any:
    return getattr(model, body_name(model))


def rotary_of(model: Any) -> Any:
    """The module that makes a model's RoPE tables, whatever it is called: it holds their frequencies. None where there
    is none."""
    held = body(model)
    own = (child for child in held.children() if any("inv_freq" in name for name, _ in child.named_buffers()))
    return getattr(held, "rotary_emb", None) or next(own, None)
