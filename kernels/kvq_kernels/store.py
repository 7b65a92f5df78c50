"""A growing packed cache of one tensor (keys or values) of one layer: [sinks fp16 | packed | recent fp16].

This is the cache itself, not a record of one: nothing dequantized is kept. Capacity grows ahead of the tokens, so that
appending is a write into place; ``nbytes`` are the bytes of the tokens held, ``allocated`` those of the buffers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from kvq_kernels.dispatch import KernelError, Path
from kvq_kernels.grouped import Axis, Grid, PackedGroups, quantize_pack, unpack_dequantize
from kvq_kernels.packing import packed_bytes
from torch import Tensor

# Root mean square of a head's keys above which float16 queries cost more than some 1 % of the output, by grouped axis:
# what they lose in rounding is multiplied by offsets that softmax does not see.
FAR = {"tokens": 512.0, "channels": 32.0}

Encode = Callable[[Tensor, bool], PackedGroups]  # x (batch, kv_heads, tokens, head_dim), whether it is the prompt's


class Layout(NamedTuple):
    """How a tensor is stored: grid and grouped axis of the packed part, and the windows around it.

    After every append, ``step`` tokens, the oldest of the recent ones, are packed whenever ``recent + step`` are held.
    """

    grid: Grid
    axis: Axis
    sinks: int = 0
    recent: int = 0
    step: int = 1

    def due(self, held: int) -> int:
        """How many of ``held`` recent tokens are to be packed now."""
        return 0 if held < self.recent + self.step else (held - self.recent) // self.step * self.step


@dataclass
class Store:
    """``norms`` (batch, kv_heads, 1, head_dim): packed tokens are stored divided by them, the others as given.

    ``encode`` replaces quantize_pack where a method rounds in its own way. ``sink`` (batch, kv_heads, sinks, head_dim);
    ``ring`` (batch, kv_heads, recent + step, head_dim): the token after the sinks that has number n is in slot
    n mod (recent + step). ``packed`` has room for more than ``packed_tokens``. ``largest``, float32: the size of the
    largest number packed, kept on the device; ``far``: the prompt was far from zero (FAR), found as it entered, because
    a step reads nothing back.
    """

    layout: Layout
    packed: PackedGroups
    sink: Tensor
    ring: Tensor
    largest: Tensor
    norms: Tensor | None = None
    encode: Encode | None = None
    path: Path = "auto"
    sink_tokens: int = 0
    packed_tokens: int = 0
    later_tokens: int = 0  # tokens after the sinks, packed or not
    far: bool = False

    @classmethod
    def empty(
        cls, like: Tensor, layout: Layout, room: int = 0, norms: Tensor | None = None, encode: Encode | None = None,
        path: Path = "auto",
    ) -> "Store":  # fmt: skip
        """For tensors like ``like`` (batch, kv_heads, any, head_dim), with room for ``room`` packed tokens."""
        if layout.axis == "tokens" and layout.step % layout.grid.group_size:
            raise KernelError(
                f"step = {layout.step} packs parts of a group of {layout.grid.group_size} tokens; use a multiple of it."
            )
        batch, heads, _, dim = like.shape
        sink = torch.empty(batch, heads, layout.sinks, dim, dtype=torch.float16, device=like.device)
        ring = sink.new_empty(batch, heads, layout.recent + layout.step, dim)
        packed = _buffers(like, layout, room)
        return cls(layout, packed, sink, ring, torch.zeros((), device=like.device), norms, encode, path)

    @property
    def tokens(self) -> int:
        return self.sink_tokens + self.later_tokens

    def fill(self, x: Tensor) -> None:
        """Enter the prompt: sinks, one packed block of everything due, and the window; the store must be empty."""
        if self.tokens:
            raise KernelError("fill is for an empty store; append to this one.")
        sizes = torch.linalg.vector_norm(x.float(), dim=(-1, -2)) / (x.shape[-1] * x.shape[-2]) ** 0.5
        self.far = not x.is_meta and bool((sizes > FAR[self.layout.axis]).any())
        self._take_sinks(x)
        rest = x[..., self.sink_tokens :, :]
        due = self.layout.due(rest.shape[-2])
        if due:
            self._pack(rest[..., :due, :], prompt=True)
        self.later_tokens = due
        self._write_ring(rest[..., due:, :])

    def append(self, x: Tensor) -> None:
        """Enter new tokens x (batch, kv_heads, n, head_dim) without packing any, which ``pack_due`` does. They must fit
        the window, where at most recent + step tokens wait."""
        if self.sink_tokens < self.layout.sinks:
            before = self.sink_tokens
            self._take_sinks(x)
            x = x[..., self.sink_tokens - before :, :]
        self._write_ring(x)

    def pack_due(self) -> int:
        """Pack what is due and return how many tokens that were."""
        due = self.layout.due(self.later_tokens - self.packed_tokens)
        if due:
            self._pack(self._read_ring(self.packed_tokens, self.packed_tokens + due))
        return due

    def extend(self, x: Tensor) -> None:
        """Enter any number of tokens, packing them as they become due."""
        while x.shape[-2]:
            room = self.ring.shape[-2] - (self.later_tokens - self.packed_tokens) + self.layout.sinks - self.sink_tokens
            self.append(x[..., :room, :])
            self.pack_due()
            x = x[..., room:, :]

    def dense(self, path: Path | None = None) -> Tensor:
        """The whole cache as attention reads it: float32 (batch, kv_heads, tokens, head_dim)."""
        layout = self.layout
        count = self.packed_tokens if layout.axis == "tokens" else self.sink.shape[-1]
        packed = unpack_dequantize(self.view(), layout.grid, layout.axis, count, path or self.path)
        if self.norms is not None:
            packed = packed * self.norms.float()
        return torch.cat([self.sinks().float(), packed, self.recent().float()], -2)

    def sinks(self) -> Tensor:
        """The first tokens, float16."""
        return self.sink[..., : self.sink_tokens, :]

    def recent(self) -> Tensor:
        """The newest tokens, which are not packed yet, float16."""
        return self._read_ring(self.packed_tokens, self.later_tokens)

    def view(self) -> PackedGroups:
        """The packed tokens alone, without the room after them."""
        grid, n = self.layout.grid, self.packed_tokens
        if self.layout.axis == "channels":
            return PackedGroups(*(t[..., :n, :] for t in self.packed))
        groups = -(-n // grid.group_size)
        words = groups if grid.mode == "asymmetric" else groups * grid.words
        sizes = (packed_bytes(n, grid.bits), groups, words)
        return PackedGroups(*(t[..., :size] for t, size in zip(self.packed, sizes, strict=True)))

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, norms included."""
        parts = [
            *self.view(),
            self.sinks(),
            self.ring[..., : self.later_tokens - self.packed_tokens, :],
        ]
        parts += [] if self.norms is None else [self.norms]
        return sum(t.numel() * t.element_size() for t in parts)

    @property
    def allocated(self) -> int:
        """Bytes of the buffers, room for more tokens included."""
        parts = [*self.packed, self.sink, self.ring, self.largest] + ([] if self.norms is None else [self.norms])
        return sum(t.numel() * t.element_size() for t in parts)

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
        if self.layout.axis == "channels":  # fmax passes over NaN, which stays where it is
            torch.fmax(self.largest, torch.linalg.vector_norm(x.float(), torch.inf), out=self.largest)
        if self.norms is not None:
            x = x.float() / self.norms.float()
        if self.encode is not None:
            fresh = self.encode(x, prompt)
        else:
            fresh = quantize_pack(x, self.layout.grid, self.layout.axis, self.path)
        self._reserve(self.packed_tokens + x.shape[-2])
        dim = -1 if self.layout.axis == "tokens" else -2
        before = self.view()
        for buffer, old, new in zip(self.packed, before, fresh, strict=True):
            buffer.narrow(dim, old.shape[dim], new.shape[dim]).copy_(new)
        self.packed_tokens += x.shape[-2]

    def _reserve(self, tokens: int) -> None:
        if tokens <= self._room:
            return
        room = tokens + max(256, tokens // 8)
        held = self.view()
        grown = _buffers(self.sink, self.layout, room)
        for buffer, old in zip(grown, held, strict=True):
            buffer[tuple(slice(0, n) for n in old.shape)] = old
        self.packed = grown

    @property
    def _room(self) -> int:
        if self.layout.axis == "channels":
            return self.packed.codes.shape[-2]
        return self.packed.scales.shape[-1] * self.layout.grid.group_size


def _buffers(like: Tensor, layout: Layout, room: int) -> PackedGroups:
    """Uninitialised packed tensors for ``room`` tokens, whole groups of them."""
    grid = layout.grid
    batch, heads, dim = like.shape[0], like.shape[1], like.shape[3]
    room = -(-max(room, 1) // grid.group_size) * grid.group_size
    rows, count = (dim, room) if layout.axis == "tokens" else (room, dim)
    groups = -(-count // grid.group_size)
    plain = grid.mode == "asymmetric"
    words, kind = (groups, grid.zero_point) if plain else (groups * grid.words, torch.int32)
    lead, device = (batch, heads, rows), like.device
    return PackedGroups(
        torch.empty(*lead, packed_bytes(count, grid.bits), dtype=torch.uint8, device=device),
        torch.empty(*lead, groups, dtype=grid.scale, device=device),
        torch.empty(*lead, words, dtype=kind, device=device),
    )
