"""What a model's weights and configuration say of its cache."""

from typing import Any

import torch

from kvq_core.inspection.report import CacheFacts, LayerFacts
from kvq_core.models import LoadedModel
from kvq_core.models.shape import NORMS
from kvq_core.models.survey import attention_modules

FP16_BYTES = 2


def facts_of(model: LoadedModel) -> CacheFacts:
    """Facts of a loaded model; its RoPE is probed with a few tokens where that was not done before."""
    config, shape = model.model.config, model.shape
    rope, modules, scoring = _ropes(config), attention_modules(model.model), model.scoring
    layers = tuple(
        LayerFacts(
            layer=layer,
            kind=kind.kind,
            window=kind.window,
            state=bool(kind.conv or kind.recurrent),
            reads=kind.reads,
            sinks=how is not None and how.sinks is not None,
            softcap=None if how is None else how.softcap,
            rope=rotation,
            rope_base=rope[layer].get("rope_theta"),
            key_bias=None if model.key_bias is None else model.key_bias[layer].norm().item(),
            key_norm_gain=_gain(modules.get(layer)),
        )
        for layer, (kind, rotation, how) in enumerate(zip(shape.kinds, model.rotations, scoring, strict=True))
    )
    main = rope[shape.full[0] if shape.full else shape.keyed[0]]
    return CacheFacts(
        architecture=config.model_type,
        layers=layers,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        query_groups=shape.query_groups,
        head_dim=shape.head_dim,
        context=shape.context,
        rope=str(main.get("rope_type", "default")),
        rope_base=main.get("rope_theta"),
        token_bytes=FP16_BYTES * sum(shape.kinds[layer].elements for layer in shape.keyed),
    )


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The parameters of RoPE by layer: some models have others for each kind of layer."""
    told = getattr(config, "rope_parameters", None) or {}
    base = {"rope_theta": getattr(config, "rope_theta", None)}
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    own = (told.get(kind) for kind in kinds)
    return [base | (of if isinstance(of, dict) else told) for of in own]


@torch.no_grad()
def _gain(module: Any) -> float | None:
    """Root mean square of what the norm multiplies with that a layer's keys pass after their projection. It is asked,
    for some norms multiply with one more than their weights."""
    norm = next((found for name in NORMS if (found := getattr(module, name, None)) is not None), None)
    weight = getattr(norm, "weight", None)
    if norm is None or weight is None:
        return None
    signs = torch.ones_like(weight)
    signs[..., ::2] = -1  # of mean 0 and rms 1
    gain: float = norm(signs).float().square().mean().sqrt().item()
    return gain
