"""A growing packed cache of one tensor (keys or values) of one layer: [sinks fp16 | packed | recent fp16].

This is the cache itself, not a record of one: nothing dequantized is kept. Appending is a write into place, and what is
there never moves; ``nbytes`` are the bytes of the tokens held, ``allocated`` those of the buffers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from kvq_kernels.blocks import BlockForm, Dense
from kvq_kernels.dispatch import KernelError, Path
from kvq_kernels.grouped import PackedGroups, dequantize_codes, quantize_pack
from kvq_kernels.layout import Layout
from kvq_kernels.packing import pack, unpack
from kvq_kernels.pool import BlockPool, Blocks
from torch import Tensor

Side = Literal["keys", "values"]
SIDES: tuple[Side, Side] = ("keys", "values")
Encode = Callable[[Tensor, bool], PackedGroups]  # x (batch, kv_heads, tokens, head_dim), whether it is the prompt's


class Mark(NamedTuple):
    """A store as it was: the windows, the largest scale, and the counts of tokens."""

    sink: Tensor
    ring: Tensor
    widest: Tensor
    counts: tuple[int, int, int]


@dataclass
class Store:
    """``norms`` (batch, kv_heads, 1, head_dim): packed tokens are stored divided by them, the others as given.

    ``encode`` replaces quantize_pack where a method rounds in its own way. ``sink`` (batch, kv_heads, sinks, head_dim);
    ``ring`` (batch, kv_heads, recent + step, head_dim): the token after the sinks that has number n is in slot
    n mod (recent + step). On the device, for kernels: ``widest`` float32 (batch * kv_heads,), the largest scale packed,
    and ``lengths`` int32 (batch * kv_heads, 4): sinks, packed tokens, tokens after the sinks.
    """

    layout: Layout
    pool: Blocks
    sink: Tensor
    ring: Tensor
    widest: Tensor
    lengths: Tensor
    norms: Tensor | None = None
    encode: Encode | None = None
    path: Path = "auto"
    sink_tokens: int = 0
    packed_tokens: int = 0
    later_tokens: int = 0  # tokens after the sinks, packed or not
    scratch: dict[tuple[int, ...], tuple[Tensor, ...]] = field(default_factory=dict)  # of kernels, by its shape
    rows: list["Store"] = field(default_factory=list)  # of which this one is the memory (kvq_kernels.rows); they count

    @classmethod
    def empty(
        cls, like: Tensor, layout: Layout, side: Side, room: int = 0, norms: Tensor | None = None,
        encode: Encode | None = None, path: Path = "auto",
    ) -> "Store":  # fmt: skip
        """For tensors like ``like`` (batch, kv_heads, any, head_dim), with room for ``room`` packed tokens."""
        if side not in SIDES:
            raise KernelError(f"side = {side!r}: allowed are {', '.join(SIDES)}.")
        layout.check()
        batch, heads, _, dim = like.shape
        form = BlockForm(layout.grid, layout.axis, "channels" if side == "keys" else "tokens", dim)
        sink = torch.empty(batch, heads, layout.sinks, dim, dtype=torch.float16, device=like.device)
        ring = sink.new_empty(batch, heads, layout.recent + layout.step, dim)
        pool = BlockPool(form, batch * heads, like.device, room)
        widest = torch.zeros(batch * heads, device=like.device)
        lengths = torch.zeros(batch * heads, 4, dtype=torch.int32, device=like.device)
        return cls(layout, pool, sink, ring, widest, lengths, norms, encode, path)

    @property
    def form(self) -> BlockForm:
        return self.pool.form

    @property
    def members(self) -> list["Store"]:
        """The stores that count what is held: the rows that share this memory, else itself."""
        return self.rows or [self]

    @property
    def packs_itself(self) -> bool:
        """Whether a step on the device packs what is due, rather than ``encode``."""
        return self.encode is None and all(row.encode is None for row in self.rows)

    @property
    def tokens(self) -> int:
        self._check_counts()
        return self.sink_tokens + self.later_tokens

    def fill(self, x: Tensor) -> None:
        """Enter the prompt: sinks, one packed block of everything due, and the window; the store must be empty."""
        self._check_given(x)
        if self.tokens:
            raise KernelError("fill is for an empty store; append to this one.")
        self._take_sinks(x)
        rest = x[..., self.sink_tokens :, :]
        due = self.layout.due(rest.shape[-2])
        if due:
            self._pack(rest[..., :due, :], prompt=True)
        self.later_tokens = due
        self._write_ring(rest[..., due:, :])
        self._tell()

    def append(self, x: Tensor) -> None:
        """Enter new tokens x (batch, kv_heads, n, head_dim) without packing any, which ``pack_due`` does. They must fit
        the window, where at most recent + step tokens wait."""
        self._check_given(x)
        if self.sink_tokens < self.layout.sinks:
            before = self.sink_tokens
            self._take_sinks(x)
            x = x[..., self.sink_tokens - before :, :]
        self._write_ring(x)
        self._tell()

    def pack_due(self) -> int:
        """Pack what is due and return how many tokens that were."""
        self._check_counts()
        due = self.layout.due(self.later_tokens - self.packed_tokens)
        if due:
            self._pack(self._read_ring(self.packed_tokens, self.packed_tokens + due))
            self._tell()
        return due

    def reserve_step(self) -> None:
        """Have room for what a step may pack."""
        most = max(row.packed_tokens for row in self.members)
        self.pool.reserve(most + self.layout.recent + self.layout.step)

    def count_step(self) -> None:
        """Count a token that a step on the device has entered, and what it packed; an encoder packs it here."""
        for row in self.members:
            if row.sink_tokens < self.layout.sinks:
                row.sink_tokens += 1
            else:
                row.later_tokens += 1
            if self.packs_itself:
                row.packed_tokens += self.layout.due(row.later_tokens - row.packed_tokens)
            else:
                row.pack_due()

    def mark(self) -> Mark:
        """What ``rewind`` needs. Codes need no copy, because they are only added to."""
        self._check_counts()
        counts = (self.sink_tokens, self.packed_tokens, self.later_tokens)
        return Mark(self.sink.clone(), self.ring.clone(), self.widest.clone(), counts)

    def rewind(self, mark: Mark) -> None:
        """Forget all that entered since the mark."""
        self._check_counts()
        for held, then in zip((self.sink, self.ring, self.widest), mark[:3], strict=True):
            held.copy_(then)
        if self.packed_tokens > mark.counts[1]:
            self.pool.cut(mark.counts[1], self.packed_tokens)
        self.sink_tokens, self.packed_tokens, self.later_tokens = mark.counts
        self._tell()

    def extend(self, x: Tensor) -> None:
        """Enter any number of tokens, packing them as they become due."""
        while x.shape[-2]:
            room = self.ring.shape[-2] - (self.later_tokens - self.packed_tokens) + self.layout.sinks - self.sink_tokens
            self.append(x[..., :room, :])
            self.pack_due()
            x = x[..., room:, :]

    def dense(self) -> Tensor:
        """The whole cache as attention reads it: float32 (batch, kv_heads, tokens, head_dim)."""
        held = self.pool.read(self.packed_tokens)
        rows = dequantize_codes(*held, self.layout.grid)
        packed = (rows.mT if self.layout.axis == "tokens" else rows).unflatten(0, self.sink.shape[:2])
        if self.norms is not None:
            packed = packed * self.norms.float()
        return torch.cat([self.sinks().float(), packed, self.recent().float()], -2)

    def sinks(self) -> Tensor:
        """The first tokens, float16."""
        self._check_counts()
        return self.sink[..., : self.sink_tokens, :]

    def recent(self) -> Tensor:
        """The newest tokens, which are not packed yet, float16."""
        self._check_counts()
        return self._read_ring(self.packed_tokens, self.later_tokens)

    def groups(self) -> PackedGroups:
        """The packed tokens as the operations on groups take them: a copy."""
        self._check_counts()
        held = self.pool.read(self.packed_tokens)
        packed = Dense(pack(held.codes, self.layout.grid.bits), held.scales, held.words)
        return PackedGroups(*(part.contiguous().unflatten(0, self.sink.shape[:2]) for part in packed))

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, norms included."""
        if self.rows:
            return sum(row.nbytes for row in self.rows)
        parts = [self.sinks(), self.ring[..., : self.later_tokens - self.packed_tokens, :]]
        parts += [] if self.norms is None else [self.norms]
        return self.pool.matrices * self.form.held(self.packed_tokens) + sum(
            t.numel() * t.element_size() for t in parts
        )

    @property
    def allocated(self) -> int:
        """Bytes of the buffers, room for more tokens included."""
        parts = [self.sink, self.ring, self.widest, self.lengths] + ([] if self.norms is None else [self.norms])
        parts += [tensor for each in self.scratch.values() for tensor in each]
        return self.pool.nbytes + sum(t.numel() * t.element_size() for t in parts)

    def lend(self) -> None:
        """Let its rows lie in this memory, one after another."""
        row = matrix = 0
        for store in self.rows:
            rows, matrices = store.sink.shape[0], store.pool.matrices
            store.sink, store.ring = self.sink[row : row + rows], self.ring[row : row + rows]
            here = slice(matrix, matrix + matrices)
            store.widest, store.lengths = self.widest[here], self.lengths[here]
            row, matrix = row + rows, matrix + matrices

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, which needs no kernel's scratch."""
        return self.__dict__ | {"scratch": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lend()  # copied one by one, rows lie by themselves

    def _check_counts(self) -> None:
        if self.rows:
            raise KernelError(
                f"This store is the memory of {len(self.rows)} rows, which count for themselves: ask them."
            )

    def _check_given(self, x: Tensor) -> None:
        self._check_counts()
        batch, heads, _, dim = self.sink.shape
        if (*x.shape[:-2], x.shape[-1]) != (batch, heads, dim):
            raise KernelError(
                f"{tuple(x.shape)} are no tokens of this store, which takes ({batch}, {heads}, tokens, {dim})."
            )

    def _tell(self) -> None:
        """The lengths to the device."""
        for at, count in enumerate((self.sink_tokens, self.packed_tokens, self.later_tokens)):
            self.lengths[:, at] = count

    def _take_sinks(self, x: Tensor) -> None:
        n = min(self.layout.sinks - self.sink_tokens, x.shape[-2])
        self.sink[..., self.sink_tokens : self.sink_tokens + n, :] = x[..., :n, :]
        self.sink_tokens += n

    def _write_ring(self, x: Tensor) -> None:
        room = self.ring.shape[-2]
        if self.later_tokens - self.packed_tokens + x.shape[-2] > room:
            raise KernelError(f"{x.shape[-2]} tokens do not fit the window of {room}; use extend.")
        first = self.later_tokens % room
        cut = min(room - first, x.shape[-2])
        self.ring[..., first : first + cut, :] = x[..., :cut, :]
        self.ring[..., : x.shape[-2] - cut, :] = x[..., cut:, :]
        self.later_tokens += x.shape[-2]

    def _read_ring(self, start: int, end: int) -> Tensor:
        room = self.ring.shape[-2]
        first = start % room
        part = self.ring[..., first : first + end - start, :]
        short = end - start - part.shape[-2]
        return torch.cat([part, self.ring[..., :short, :]], -2) if short else part

    def _pack(self, x: Tensor, prompt: bool = False) -> None:
        """Pack x behind the packed tokens. Window tokens were rounded to float16 when they entered, the prompt's were
        not, and are encoded from the values given."""
        if self.norms is not None:
            x = x.float() / self.norms.float()
        if self.encode is not None:
            fresh = self.encode(x, prompt)
        else:
            fresh = quantize_pack(x, self.layout.grid, self.layout.axis, self.path)
        sizes = fresh.scales.float().abs().nan_to_num(0.0, posinf=0.0)  # a group of none of them bounds no other
        torch.maximum(self.widest, sizes.amax((-1, -2)).flatten(), out=self.widest)
        count = x.shape[-2] if self.layout.axis == "tokens" else x.shape[-1]
        codes = unpack(fresh.codes, self.layout.grid.bits, count)
        self.pool.reserve(self.packed_tokens + x.shape[-2])
        parts = (codes, fresh.scales, fresh.words)
        self.pool.write(self.packed_tokens, Dense(*(part.flatten(0, 1) for part in parts)))
        self.packed_tokens += x.shape[-2]
