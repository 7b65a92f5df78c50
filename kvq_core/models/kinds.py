"""The kinds of a transformers model's layers: what its configuration says of them, held against what they do."""

from typing import Any

from kvq_core.errors import ModelError
from kvq_core.models.survey import AttentionCall, Unlike, survey
from kvq_core.shape import LayerKind
from kvq_core.sizing.layers import shape_of as sized

UNSUPPORTED = "Use a model whose layers keep keys and values; docs/models.md lists those that were tried."


def unsupported(config: Any, reason: str) -> ModelError:
    return ModelError(f"{config.model_type} models are not supported: {reason}. {UNSUPPORTED}")


def layer_kinds(config: Any) -> tuple[LayerKind, ...]:
    """The kinds as a configuration has them. Raises ModelError where it does not say them."""
    try:
        return sized(config.to_dict()).kinds
    except ModelError as error:
        raise unsupported(config, f"its layers are not known ({error})") from None


def kinds_of(model: Any) -> tuple[LayerKind, ...]:
    """The kind of each layer. Raises ModelError where a layer attends, but not as its kind does."""
    kinds = layer_kinds(model.config)
    try:
        calls = survey(model)
    except Unlike as error:
        raise unsupported(model.config, str(error)) from None
    if not calls:
        raise unsupported(model.config, "its attention does not hand its keys and values to another implementation")
    for layer, kind in enumerate(kinds):
        if reason := _apart(kind if kind.reads is None else kinds[kind.reads], calls.get(layer)):
            raise unsupported(model.config, f"layer {layer} {reason}")
    asking = {calls[layer].query_heads for layer, kind in enumerate(kinds) if kind.kind == "full"}
    if len(asking) > 1:
        raise unsupported(
            model.config, f"its layers of full attention have {' and '.join(map(str, sorted(asking)))} query heads"
        )
    if beyond := [layer for layer in calls if layer >= len(kinds)]:
        raise unsupported(model.config, f"it attends in layer {beyond[0]} of {len(kinds)}")
    return kinds


def _apart(kind: LayerKind, call: AttentionCall | None) -> str | None:
    """Where a layer does something else than its kind; None where it does not."""
    if call is None:
        return f"is of kind {kind.kind} and does not attend" if kind.kv_heads else None
    if not kind.kv_heads:
        return "attends and keeps no keys of its own, and its configuration does not say whose it reads"
    told = (kind.kv_heads, kind.key_dim, kind.value_dim)
    done = (call.kv_heads, call.key_dim, call.value_dim)
    if told != done:
        return f"has kv_heads, key and value channels {done}, and its configuration says {told}"
    if kind.kind == "full" and call.window:
        return f"attends to a window of {call.window} tokens, of which its configuration does not say"
    if kind.kind == "sliding" and call.window not in (None, kind.window):
        return f"attends to a window of {call.window} tokens, and its configuration says {kind.window}"
    return None
