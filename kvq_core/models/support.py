"""Which transformers models the lock-step engine can run without changing what they compute, and this machine hold."""

from copy import deepcopy
from typing import Any

import torch

from kvq_core.errors import ModelError
from kvq_core.machine.memory import room_for
from kvq_core.models.body import rotary_of
from kvq_core.models.kinds import kinds_of, layer_kinds, unsupported
from kvq_core.spec import DEFAULT_MODEL


def check_config(config: Any) -> None:
    """Refuse an architecture whose attention this engine would not reproduce.

    Raises ModelError with the reason.
    """
    reason = _reason(config)
    if reason:
        raise unsupported(config, reason)
    layer_kinds(config)


def _reason(config: Any) -> str | None:
    if getattr(config, "kv_lora_rank", None) or getattr(config, "qk_rope_head_dim", None):
        return "multi-head latent attention (MLA) caches a compressed latent, not keys and values"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder, and only the caches of decoders are compared"
    told = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if not isinstance(told, dict):
        return None
    typed = [own for own in told.values() if isinstance(own, dict)]  # of each kind of layer
    return next(filter(None, map(_lengthening, typed or [told])), None)


def _lengthening(rope: dict[str, Any]) -> str | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    by_pair = (
        kind == "longrope" and rope["short_factor"] == rope["long_factor"]
    )  # of a GGUF file: the same at any length
    if kind in ("dynamic", "longrope") and not by_pair:
        return f"its RoPE ({kind}) changes with the length of the text, so stored keys cannot be rotated back"
    return None


def check_model(model: Any) -> None:
    """Refuse a model whose layers do not hold what its configuration says, or that tells positions in a way that is not
    known, which only its modules show.

    Raises ModelError with the reason.
    """
    kinds = kinds_of(model)
    if rotary_of(model) is None and not any(kind.conv or kind.recurrent for kind in kinds):
        raise unsupported(model.config, "no rotary position embedding was found")


def check_room(id: str, config: Any) -> None:
    """Whether float32 weights of a configuration fit into the memory that is free, known before any are read.

    Raises ModelError where the machine would end the process instead.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):  # shapes alone
        # transformers makes a model's dtype the default of the process meanwhile, which other threads compute in
        model = AutoModelForCausalLM.from_config(deepcopy(config), dtype=torch.float32)
    needed = 4 * sum(weight.numel() for weight in model.parameters())
    if needed > (free := room_for(needed)):
        raise ModelError(
            f"Model {id!r} needs {needed / 1e9:.1f} GB for its weights in float32, and {free / 1e9:.1f} GB of memory "
            f"are free. Pick a smaller model, such as {DEFAULT_MODEL}."
        )


def check_weights(id: str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint whose tensors are not the architecture's, by transformers' report on loading it: whatever a
    checkpoint lacks is filled with random numbers.

    Raises ModelError with the tensors' names.
    """
    wrong = {
        "lacks": sorted(report["missing_keys"]),
        "holds other tensors than its configuration asks for:": sorted(report["unexpected_keys"]),
        "holds in another shape than its configuration asks for:": sorted(k for k, *_ in report["mismatched_keys"]),
    }
    told = [f"it {what} {_some(names)}" for what, names in wrong.items() if names]
    if told:
        raise ModelError(
            f"Model {id!r} could not be loaded: {'; '.join(told)}. Check its id or folder: the checkpoint is not whole "
            "or belongs to another configuration."
        )


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
