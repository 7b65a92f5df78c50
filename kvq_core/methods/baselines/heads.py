"""A token's heads side by side, as baselines that treat a layer's heads together see them."""

from torch import Tensor

from kvq_core.shape import ModelShape


def join_heads(x: Tensor) -> Tensor:
    """(layers, kv_heads, tokens, head_dim) -> (layers, 1, tokens, channels), channels = kv_heads * head_dim."""
    return x.transpose(1, 2).flatten(2).unsqueeze(1)


def part_heads(rows: Tensor, kv_heads: int) -> Tensor:
    """The inverse of ``join_heads``."""
    return rows[:, 0].unflatten(-1, (kv_heads, -1)).transpose(1, 2)


def joint_grouping_why_not(shape: ModelShape, group_size: int, named: str = "group_size") -> str | None:
    """Groups of channels over all heads must tile them."""
    channels = shape.kv_heads * shape.head_dim
    if channels % group_size:
        heads = f"{shape.kv_heads} KV heads of {shape.head_dim} channels side by side"
        return f"{named} = {group_size} does not divide {channels}, the {heads}; choose a divisor of {channels}"
    return None
