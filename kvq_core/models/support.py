"""Which transformers models the lock-step engine can run without changing what they compute, and this machine hold."""

import inspect
import sys
from collections import Counter
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from kvq_core.errors import ModelError
from kvq_core.machine.memory import room_for
from kvq_core.models.lockstep import ATTENTION, ForeignAttention
from kvq_core.spec import DEFAULT_MODEL


def check_config(config: Any) -> None:
    """Refuse an architecture whose attention this engine would not reproduce.

    Raises ModelError with the reason.
    """
    reason = _reason(config)
    if reason:
        raise _unsupported(config, reason)


def _unsupported(config: Any, reason: str) -> ModelError:
    return ModelError(
        f"{config.model_type} models are not supported: {reason}. "
        "Use a model with full attention and RoPE, such as Llama, Qwen2, Qwen3 or Mistral."
    )


def _reason(config: Any) -> str | None:
    if getattr(config, "kv_lora_rank", None) or getattr(config, "qk_rope_head_dim", None):
        return "multi-head latent attention (MLA) caches a compressed latent, not keys and values"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder, and only the caches of decoders are compared"
    if getattr(config, "attn_logit_softcapping", None):
        return "its attention scores pass a soft-cap, which the engine does not apply"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if kinds - {"sliding_attention"}:
        return f"it has layers of type {', '.join(sorted(kinds))}"
    if kinds and window_of(config) is None:
        return "it has sliding-window layers of unknown width"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else "default"
    by_pair = (
        kind == "longrope" and rope["short_factor"] == rope["long_factor"]
    )  # of a GGUF file: the same at any length
    if kind in ("dynamic", "longrope") and not by_pair:
        return f"its RoPE ({kind}) changes with the length of the text, so stored keys cannot be rotated back"
    return None


def window_of(config: Any) -> int | None:
    """The sliding window in tokens, where the model uses one.

    Full attention is the same thing up to that many tokens, so the engine takes it as the longest context.
    """
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    return window if window and (sliding or getattr(config, "use_sliding_window", True)) else None


def check_model(model: Any) -> None:
    """Refuse a model without rotary embeddings, with several of them, or with attention sinks, which only its modules
    show.

    Raises ModelError with the reason.
    """
    base, config = model.base_model, model.config
    if not hasattr(base, "rotary_emb"):
        raise _unsupported(config, "no rotary position embedding was found")
    if "layer_type" in inspect.signature(base.rotary_emb.forward).parameters:
        raise _unsupported(config, "its layers do not all rotate keys in the same way")
    attention = attention_modules(model)
    if attention and not hasattr(sys.modules[type(attention[0]).__module__], "apply_rotary_pos_emb"):
        raise _unsupported(config, "it applies its rotary position embedding in a way of its own")
    if any(hasattr(module, "sinks") for module in attention):
        raise _unsupported(config, "they learn attention sinks per head")
    if len(attention) != config.num_hidden_layers:
        found = f"{len(attention)} attention modules of the usual form were found"
        raise _unsupported(config, f"{found} for {config.num_hidden_layers} layers")


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


def check_pass(model: Any) -> None:
    """Send one token through an empty twin of a model: every layer's attention must hand its keys, once, to the one it
    is told to use, and ask for nothing that one does not apply.

    The twin has shapes and no numbers (torch's meta device), so nothing is computed: on machines that lend their GPU
    for one call at a time, loading must not. Raises ModelError with the reason.
    """
    calls: Counter[int] = Counter()

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        calls[layer] += 1
        return queries.transpose(1, 2).new_empty(*queries.transpose(1, 2).shape[:-1], values.shape[-1])

    reason = "its attention does not hand its keys and values to another implementation"
    with torch.device("meta"), torch.no_grad():
        try:
            twin = type(model)(deepcopy(model.config)).to(torch.bfloat16).eval()  # experts have no float32 on meta
            twin.set_attn_implementation(ATTENTION)
            token = torch.zeros(1, 1, dtype=torch.long)
            twin(input_ids=token, position_ids=token, use_cache=False, kvq=attend)
            if calls == Counter(range(len(attention_modules(model)))):
                return
            if set(calls.values()) != {1}:
                reason = "its layers do not all attend once a token"
        except ForeignAttention as error:
            reason = str(error)
        except (ModelError, RuntimeError, TypeError, ValueError):
            pass  # such as an attention that drops arguments it does not know, the engine among them
    raise _unsupported(model.config, reason)


def attention_modules(model: Any) -> list[nn.Module]:
    """The self-attention module of each layer, in layer order."""
    found = [
        m
        for m in model.base_model.modules()
        if hasattr(m, "layer_idx") and (hasattr(m, "k_proj") or hasattr(m, "qkv_proj"))
    ]
    return sorted(found, key=lambda m: m.layer_idx)  # type: ignore[arg-type, return-value]
