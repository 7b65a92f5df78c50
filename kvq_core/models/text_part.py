"""The language model of a checkpoint that sees or hears as well: its text part is read, and the rest is left."""

from typing import Any

# where checkpoints keep it, as transformers has written them since its version 5, and as they were published before
RENAMED = {
    r"^model\.language_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}


def text_part(config: Any) -> tuple[Any, dict[str, str] | None]:
    """The configuration of a model's language model, and how names of its weights change; None where it is all."""
    inner = getattr(config, "text_config", None)
    if inner is None or not hasattr(inner, "num_hidden_layers"):
        return config, None
    return inner, dict(RENAMED)


def of_text(report: dict[str, Any], model: Any) -> dict[str, Any]:
    """What transformers reports on loading the text part alone, without tensors of other parts: those that lie where
    this model has nothing. What it lacks stays lacking."""
    own = {_place(name) for name in model.state_dict()}
    return report | {"unexpected_keys": {name for name in report["unexpected_keys"] if _place(name) in own}}


def _place(name: str) -> str:
    """``model.layers`` of ``model.layers.0.mlp.up_proj.weight``."""
    return ".".join(name.split(".")[:2])
