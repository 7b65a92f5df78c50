"""What a model's weights and configuration say of its cache."""

from typing import Any

from kvq_core.inspection.report import Facts, LayerFacts
from kvq_core.models import LoadedModel
from kvq_core.models.survey import attention_modules

FP16_BYTES = 2


def facts_of(model: LoadedModel) -> Facts:
    """Facts of a loaded model; its RoPE is probed with a few tokens where that was not done before."""
    config, shape = model.model.config, model.shape
    rope, modules = _rope(config), attention_modules(model.model)
    layers = tuple(
        LayerFacts(
            layer=layer,
            window=kind.window,
            rope=rotation,
            key_bias=None if model.key_bias is None else model.key_bias[layer].norm().item(),
            key_norm_gain=_gain(modules.get(layer)),
        )
        for layer, (kind, rotation) in enumerate(zip(shape.kinds, model.rotations, strict=True))
    )
    return Facts(
        architecture=config.model_type,
        layers=layers,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        query_groups=shape.query_groups,
        head_dim=shape.head_dim,
        context=shape.context,
        rope=str(rope.get("rope_type", "default")),
        rope_base=rope.get("rope_theta"),
        token_bytes=FP16_BYTES * sum(shape.kinds[layer].elements for layer in shape.keyed),
    )


def _rope(config: Any) -> dict[str, Any]:
    told = getattr(config, "rope_parameters", None) or {}
    return {"rope_theta": getattr(config, "rope_theta", None), **told}


def _gain(module: Any) -> float | None:
    """Root mean square of the weights of the norm a layer's keys pass after their projection."""
    weight = getattr(getattr(module, "k_norm", None), "weight", None)
    return None if weight is None else weight.float().square().mean().sqrt().item()
