"""The states of layers that keep no keys and values: elements of one sequence, whatever its length."""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def state_of(config: Config) -> dict[str, int]:
    """``conv`` and ``recurrent`` elements of such a layer, and the tokens that ``conv`` spans.

    Raises ValueError where a configuration has none of the fields that say so.
    """
    for reader in (_delta, _kimi, _mamba_2, _mamba_1, _short):
        if found := reader(config):
            return found
    family = config.get("model_type", "this family")
    raise ValueError(f"the state of layers without attention of {family} is not known here")


def _state(channels: int, width: int, recurrent: int) -> dict[str, int]:
    return {"conv": channels * width, "conv_width": width, "recurrent": recurrent}


def _delta(config: Config) -> dict[str, int] | None:
    """Gated delta net of Qwen3-Next and Qwen3.5: queries, keys and values pass the convolution."""
    if not config.get("linear_key_head_dim"):
        return None
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads, value = config["linear_num_value_heads"], config["linear_value_head_dim"]
    channels = 2 * keys + heads * value
    return _state(channels, config["linear_conv_kernel_dim"], heads * config["linear_key_head_dim"] * value)


def _kimi(config: Config) -> dict[str, int] | None:
    """Kimi's delta attention: three convolutions, of queries, keys and values."""
    own = config.get("linear_attn_config") or {}
    heads = own.get("num_heads") or config.get("linear_num_heads")
    dim = own.get("head_dim") or config.get("linear_head_dim")
    if not heads or not dim:
        return None
    width = own.get("short_conv_kernel_size") or config.get("linear_conv_kernel_dim", 4)
    return _state(3 * heads * dim, width, heads * dim * dim)


def _mamba_2(config: Config) -> dict[str, int] | None:
    """Mamba-2, in the words of Granite 4, Bamba and Falcon-H1, of Nemotron-H, and of Zamba2."""
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads") or config.get("n_mamba_heads")
    size = config.get("mamba_d_state") or config.get("ssm_state_size")
    if not heads or not size:
        return None
    dim = config.get("mamba_d_head") or config.get("mamba_head_dim") or config.get("mamba_headdim")
    inner = config.get("mamba_d_ssm") or (heads * dim if isinstance(dim, int) else _expanded(config))
    groups = config.get("mamba_n_groups") or config.get("mamba_ngroups") or config.get("n_groups") or 1
    width = config.get("mamba_d_conv") or config.get("conv_kernel") or 4
    return _state(inner + 2 * groups * size, width, inner * size)


def _mamba_1(config: Config) -> dict[str, int] | None:
    """Mamba, as in Jamba."""
    size = config.get("mamba_d_state")
    if not size:
        return None
    # transformers' scan begins anew with every call of more than one token
    return {**_state(_expanded(config), config.get("mamba_d_conv", 4), _expanded(config) * size), "in_chunks": False}


def _short(config: Config) -> dict[str, int] | None:
    """LFM2's short convolutions."""
    width = config.get("conv_L_cache")
    return _state(config["hidden_size"], width, 0) if width else None


def _expanded(config: Config) -> int:
    return int(config.get("mamba_expand") or config.get("expand") or 2) * int(config["hidden_size"])
