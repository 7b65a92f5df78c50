"""Rows of different lengths in one memory, so that a step reads and writes all of them in the launches of one."""

from collections.abc import Sequence

import torch
from kvq_kernels.dispatch import KernelError
from kvq_kernels.pool import BlockPool, RowBlocks
from kvq_kernels.store import Store


def join(stores: Sequence[Store]) -> Store:
    """One store over the rows of several of one layout, which stay what they are and count, but lie in its memory from
    now on: what is entered into them, row by row or by a step of the whole, is entered there."""
    first = stores[0]
    if any((s.layout, s.form) != (first.layout, first.form) or s.rows for s in stores):
        raise KernelError("Rows are joined where all are stored alike, each on its own.")
    pool = _pool(stores)
    sink, ring, widest, lengths = (
        torch.cat(part) for part in zip(*((s.sink, s.ring, s.widest, s.lengths) for s in stores), strict=True)
    )
    norms = [s.norms for s in stores if s.norms is not None]
    together = torch.cat(norms) if norms else None
    whole = Store(first.layout, pool, sink, ring, widest, lengths, together, None, first.path, rows=list(stores))
    matrix = 0
    for store in stores:
        blocks = RowBlocks(pool, matrix, store.pool.matrices)
        if store.packed_tokens:
            blocks.write(0, store.pool.read(store.packed_tokens))
        store.pool = blocks
        matrix += blocks.matrices
    whole.lend()
    return whole


def _pool(stores: Sequence[Store]) -> BlockPool:
    """Room for what is packed, and to go on."""
    first = stores[0]
    most = max(s.packed_tokens for s in stores) + first.layout.recent + first.layout.step
    return BlockPool(first.form, sum(s.pool.matrices for s in stores), first.ring.device, most)
