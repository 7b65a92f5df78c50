"""Elements that are kept apart: found in rows, taken out before the rest is rounded, put back when it is read."""

import torch
from torch import Tensor

from kvq_core.codecs.blocks import Block


def extremes(rows: Tensor, each: int) -> Tensor:
    """Positions (..., 2 * each) of the ``each`` smallest and the ``each`` largest elements of rows (..., n).

    Where more than n - each elements are equal a position may occur twice; it stands for the same value then.
    """
    ends = (rows.topk(each, -1, largest, sorted=False).indices for largest in (False, True))
    return torch.cat(list(ends), -1)


def as_index(positions: Tensor, size: int) -> Tensor:
    """Positions below ``size`` as they are stored: in 16 bits where those hold them, else in 32."""
    return positions.to(torch.int16 if size <= 1 << 15 else torch.int32)


def put_back(rows: Tensor, positions: Tensor, kept: Tensor) -> Tensor:
    """Write what was ``kept`` (..., k) at its positions (..., k) of rows (..., n), in place."""
    return rows.scatter_(-1, positions.long(), kept.float())


def share_apart(blocks: list[Block], channels: int, kv_heads: int) -> dict[str, Tensor]:
    """``outlier_share`` as Codec.usage gives it, of blocks with ``channels`` elements a token and layer: the same for
    all heads, since outliers are sought among all."""
    kept = sum(block.tensors["positions"].numel() for block in blocks if "positions" in block.tensors)
    if not kept:
        return {}
    layers = len(blocks[0].tensors["codes"])
    share = kept / (layers * channels * sum(block.tokens for block in blocks))
    return {"outlier_share": torch.full((layers, kv_heads), share)}
