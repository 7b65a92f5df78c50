"""One decode step as a whole: attention over the cache and a new token, which enters it: two launches, always the same.

The last program of a KV head could combine what the others found and spare the second launch, but programs are of one
warp: over 100 of them on an H100 at batch 1, each with 2 KB of sums for 4 query heads, are 270 KB that one warp would
read 8 KB at a time. The second launch reads them with a program for every 32 channels of a head, and its two further
programs a KV head enter key and value meanwhile, which would be a launch of its own otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from kvq_kernels.attention import Splits, attend_dense, attend_splits, check, form_constants, obstacle, tensors_of
from kvq_kernels.blocks import CELL
from kvq_kernels.dispatch import KernelError, Path, use_triton
from kvq_kernels.launch import ENTER, Launch, power_of_two, run
from kvq_kernels.store import Store
from torch import Tensor

_uncounted: ContextVar[bool] = ContextVar("uncounted", default=False)
NONE = 0  # tokens that the second launch packs at once where an encoder does it


def decode_step(
    q: Tensor, k: Tensor, v: Tensor, keys: Store, values: Store, scaling: float, path: Path = "auto",
    how: Launch | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of one new token a row over all that is held and itself; then it is held, and what is due is packed.

    q (batch, query_heads, 1, head_dim), k and v (batch, kv_heads, 1, head_dim), all after RoPE -> as q, in ``out``
    where it is given. The same as appending to both stores, ``decode_attention`` and ``pack_due``. With Triton, tensors
    in the same memory make a step the same two launches as the last; keys that a method encodes by itself (SQuat's) are
    packed between steps. Rows may hold different numbers of tokens (``kvq_kernels.rows``).
    """
    check(q, keys, values)
    for side, x in (("k", k), ("v", v)):
        if x.shape != (len(q), keys.sink.shape[1], 1, q.shape[-1]):
            raise KernelError(f"{side} {tuple(x.shape)} is not one token of {tuple(keys.sink.shape[:2])} heads.")
    if not same_launches(keys, values, q, path):
        return _reference(q, k, v, keys, values, scaling, out)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    counted = counting()
    for store in (keys, values) if counted else ():
        store.reserve_step()
    fresh = k.contiguous(), v.contiguous()
    found = attend_splits(q, keys, values, scaling, how, fresh)
    finish(found, out, keys, values, fresh)
    for store in (keys, values) if counted else ():
        store.count_step()
    return out


def same_launches(keys: Store, values: Store, like: Tensor, path: Path) -> bool:
    """Whether every step is the same two launches; else the reference runs. Raises KernelError as ``use_triton``."""
    return use_triton("decode_attention", path, like, obstacle(keys.form) or obstacle(values.form))


@contextmanager
def uncounted() -> Iterator[None]:
    """Within the block steps are launched, or captured, and not counted on the host: ``Store.reserve_step`` before and
    ``Store.count_step`` after them are the caller's, once for every time that they run."""
    token = _uncounted.set(True)
    try:
        yield
    finally:
        _uncounted.reset(token)


def counting() -> bool:
    """Whether steps are counted on the host, which is so outside of ``uncounted``."""
    return not _uncounted.get()


def finish(splits: Splits, out: Tensor, keys: Store, values: Store, fresh: tuple[Tensor, Tensor]) -> None:
    """The second launch."""
    from kvq_kernels.triton_ops.enter import finish_step_kernel

    run(
        finish_step_kernel,
        (splits.matrices, splits.heads * splits.chunks + 2),
        ENTER,
        {
            **splits.arguments(out), "norms": None if keys.norms is None else keys.norms.contiguous(),
            **tensors_of("k", keys, fresh[0]), **tensors_of("v", values, fresh[1]),
        },
        {
            **splits.constants(), "DP": max(CELL, power_of_two(keys.form.dim)), "C": keys.form.channels // CELL,
            "HAS_NORMS": keys.norms is not None, "SINKS": keys.layout.sinks, **_entering("K", keys),
            **_entering("V", values),
        },
    )  # fmt: skip


def _entering(name: str, store: Store) -> dict[str, Any]:
    """What a side's tokens enter by: ``TILE`` elements of whole groups at once."""
    layout, group = store.layout, store.layout.grid.group_size
    most = max(1, ENTER.tokens // group)
    groups = power_of_two(layout.step) if layout.axis == "channels" else max(CELL, power_of_two(store.form.dim))
    packed = layout.step if store.packs_itself else NONE
    own = {"TILE": group * min(most, groups), "RECENT": layout.recent, "PACKED": packed}
    return {**{f"{name}_{key}": value for key, value in own.items()}, **form_constants(name, store.form)}


def _reference(
    q: Tensor, k: Tensor, v: Tensor, keys: Store, values: Store, scaling: float, out: Tensor | None
) -> Tensor:
    sides = ((keys, k), (values, v))
    for store, x in sides:
        for row, own in zip(store.members, x.split(len(x) // len(store.members)), strict=True):
            row.append(own)
    found = attend_dense(q, keys, values, scaling)
    for store, _ in sides:
        for row in store.members:
            row.pack_due()
    return found if out is None else out.copy_(found)
