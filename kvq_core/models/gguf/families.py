"""What llama.cpp takes a file of each architecture for, beside what all architectures have in common: further keys of
its header, what stands for a key that is missing, and what no key says.

Source: llama.cpp, src/llama-model.cpp (load_hparams) and src/models/; conversion/*.py for the order of weights.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from kvq_core.models.gguf import delta, gemma4
from kvq_core.models.gguf.family import Family, FamilyFacts, Fields


def alternating(layers: int, every: int) -> list[str]:
    """llama.cpp's set_swa_pattern: of so many layers the last one attends to all tokens."""
    return ["full_attention" if layer % every == every - 1 else "sliding_attention" for layer in range(layers)]


def _gemma2(facts: FamilyFacts) -> Fields:
    return {
        "sliding_window": int(facts.key("attention.sliding_window", 4096)),
        "layer_types": alternating(facts.layers, 2),
        "attn_logit_softcapping": float(facts.key("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": float(facts.key("final_logit_softcapping", 30.0)),
        # of the model of 27 billion parameters alone, which llama.cpp knows by its layers
        "query_pre_attn_scalar": facts.hidden // facts.heads if facts.layers == 46 else facts.head_dim,
    }


def _gemma3(facts: FamilyFacts) -> Fields:
    window, every = int(facts.key("attention.sliding_window", 0)), facts.key("attention.sliding_window_pattern", 6)
    kinds = alternating(facts.layers, int(every)) if window else ["full_attention"] * facts.layers
    local = {"rope_type": "default", "rope_theta": float(facts.key("rope.freq_base_swa", 10000.0))}
    return {
        "sliding_window": window or None,
        "layer_types": kinds,
        "rope_parameters": {"full_attention": dict(facts.rope), "sliding_attention": local},
        "attn_logit_softcapping": None,
        "final_logit_softcapping": float(facts.key("final_logit_softcapping", 0.0)) or None,
        "query_pre_attn_scalar": facts.hidden // facts.heads if facts.layers == 62 else facts.head_dim,
    }


def _phi3(facts: FamilyFacts) -> Fields:
    return {"sliding_window": int(facts.key("attention.sliding_window", 0)) or None}


def _starcoder2(facts: FamilyFacts) -> Fields:
    return {"sliding_window": None, "use_bias": "blk.0.attn_q.bias" in facts.tensors}


def _granite(facts: FamilyFacts) -> Fields:
    return {
        "attention_multiplier": float(facts.key("attention.scale", 0.0)) or facts.head_dim**-0.5,
        "embedding_multiplier": float(facts.key("embedding_scale", 0.0)) or 1.0,
        "residual_multiplier": float(facts.key("residual_scale", 0.0)) or 1.0,
        "logits_scaling": float(facts.key("logit_scale", 0.0)) or 1.0,
    }


def _lfm2(facts: FamilyFacts) -> Fields:
    held = facts.key("attention.head_count_kv", [])
    return {
        "layer_types": ["full_attention" if heads else "conv" for heads in held],
        "conv_L_cache": int(facts.key("shortconv.l_cache", 3)),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in facts.tensors),
        "block_auto_adjust_ff_dim": False,
    }


def _smollm3(facts: FamilyFacts) -> Fields:
    return {"no_rope_layer_interval": 4, "no_rope_layers": None}


def _stablelm(facts: FamilyFacts) -> Fields:
    return {
        "use_qkv_bias": "blk.0.attn_q.bias" in facts.tensors,
        "use_parallel_residual": bool(facts.key("use_parallel_residual", False)),
    }


def gate_then_up(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of the gate, then rows of up."""
    return np.concatenate(parts)


def interleaved(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of gate and up in turn, as columns."""
    return np.stack(parts, 1).reshape(-1, *parts[0].shape[1:]).T


def _routed(facts: FamilyFacts, count: str) -> Fields:
    """Experts, and how many of them a token takes. Raises ValueError where there are not so many."""
    experts, used = (int(facts.key(key, 0)) for key in ("expert_count", "expert_used_count"))
    if not 0 < used <= experts:
        raise ValueError(f"a token cannot take {used} of {experts} experts")
    return {count: experts, "num_experts_per_tok": used}


def _qwen_moe(facts: FamilyFacts, normed: bool | None, shared: bool) -> Fields:
    """llama.cpp weighs a token's experts so that they sum to one in Qwen3 MoE, and as they are in Qwen2 MoE; None where
    transformers knows one way alone."""
    own: Fields = (
        {"shared_expert_intermediate_size": int(facts.key("expert_shared_feed_forward_length", 0))} if shared else {}
    )
    size = int(facts.key("expert_feed_forward_length", 0))
    own |= {} if normed is None else {"norm_topk_prob": normed}
    return {**_routed(facts, "num_experts"), "moe_intermediate_size": size, **own}


def _gpt_oss(facts: FamilyFacts) -> Fields:
    return {
        **_routed(facts, "num_local_experts"),
        "intermediate_size": int(facts.key("expert_feed_forward_length", 0)),
        "sliding_window": int(facts.key("attention.sliding_window", 0)),
        "layer_types": alternating(facts.layers, 2),
    }


_ROUTED = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_LAYER_NORM = "attention.layer_norm_epsilon"
FAMILIES: dict[str, Family] = {
    "llama": Family("llama", halves=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "gemma": Family("gemma", one_more=True),
    "gemma2": Family(
        "gemma2",
        ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
        fields=_gemma2,
        one_more=True,
    ),
    "gemma3": Family(
        "gemma3_text",
        (
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "rope.freq_base_swa",
            "final_logit_softcapping",
        ),
        fields=_gemma3,
        one_more=True,
    ),
    "gemma4": gemma4.gemma4_family(),
    "phi3": Family("phi3", ("attention.sliding_window",), fields=_phi3, partial=True, wide=False),
    "starcoder2": Family("starcoder2", epsilon=(_LAYER_NORM, "norm_epsilon"), fields=_starcoder2, wide=False),
    "granite": Family(
        "granite",
        ("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
        {"rope.scaling.finetuned": True},  # False: there is no RoPE
        fields=_granite,
        halves=True,
    ),
    "lfm2": Family(
        "lfm2",
        ("shortconv.l_cache",),
        epsilon=("attention.layer_norm_rms_epsilon", "norm_eps"),
        fields=_lfm2,
        wide=False,
        kv_by_layer=True,
    ),
    "smollm3": Family("smollm3", fields=_smollm3, halves=True),
    "olmo2": Family("olmo2"),
    "stablelm": Family(
        "stablelm",
        ("use_parallel_residual",),
        epsilon=(_LAYER_NORM, "layer_norm_eps"),
        fields=_stablelm,
        partial=True,
        wide=False,
    ),
    "qwen2moe": Family(
        "qwen2_moe",
        (*_ROUTED, "expert_shared_feed_forward_length"),
        fields=partial(_qwen_moe, normed=False, shared=True),
        expert=gate_then_up,
    ),
    "qwen3moe": Family("qwen3_moe", _ROUTED, fields=partial(_qwen_moe, normed=True, shared=False), expert=gate_then_up),
    "gpt-oss": Family("gpt_oss", (*_ROUTED, "attention.sliding_window"), fields=_gpt_oss, expert=interleaved),
    "minimax-m2": Family(
        "minimax_m2",
        _ROUTED,
        {"expert_gating_func": 2},  # sigmoid
        fields=lambda facts: _routed(facts, "num_local_experts"),
        partial=True,
        expert=gate_then_up,
        names={".exp_probs_b.bias": ".mlp.e_score_correction_bias"},
    ),
    "qwen35": delta.delta_family("qwen3_5_text"),
    "qwen35moe": delta.delta_family(
        "qwen3_5_moe_text",
        (*_ROUTED, "expert_shared_feed_forward_length"),
        fields=partial(_qwen_moe, normed=None, shared=True),
        absent=("feed_forward_length",),
        expert=gate_then_up,
    ),
    "nemotron": Family("nemotron", epsilon=(_LAYER_NORM, "norm_eps"), one_more=True, partial=True),
}
