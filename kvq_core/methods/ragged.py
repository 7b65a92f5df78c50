"""A store whose units (one token of a head, or of a layer) each have their own bit width, with outliers kept apart."""

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from kvq_kernels import midpoint_codes, midpoint_values, pack, unpack
from torch import Tensor

from kvq_core.methods.codec import Block, Codec, Patch, layer_slices

WIDEST = 8
TAG = 4  # bits that name a unit's width


class Widths(Protocol):
    """Decides the width of every unit."""

    def __call__(self, extents: Tensor, rows: tuple[Tensor, ...], start: int, tokens: int) -> Tensor:
        """extents (stored tokens, layers, units), attention ``rows`` (layers, units, some tokens) of the last queries,
        oldest first, position of the first stored token, tokens in the cache -> uint8 widths like extents."""

    def remember(self, rows: tuple[Tensor, ...], attention: Tensor) -> tuple[Tensor, ...]:
        """The last rows once those of attention (layers, query_heads, fresh, tokens) have been added."""


@dataclass(frozen=True)
class RaggedBlock(Block):
    """Units in token-major order: unit u is (token, layer, unit) of (tokens, layers, units).

    ``pools[w]`` holds the packed codes of the units of width w, (count, bytes) uint8 in unit order, so that the widths
    alone locate a unit; ``slots`` is that location, kept at hand. ``tensors``: widths, 4 bits each; lows and extents
    (tokens, layers, units); outliers and positions (tokens, layers, units, count). ``host`` holds codes of the
    original values at full width, in chunks of tokens: cells nest, so no other copy is ever needed to re-encode.
    """

    pools: tuple[Tensor, ...] = ()
    slots: Tensor = field(default_factory=lambda: torch.empty(0))
    host: tuple[Tensor, ...] = ()
    rows: tuple[Tensor, ...] = ()
    rewritten: int = 0  # units whose width changed after they were stored
    fetched: int = 0  # bytes of packed codes that came from the host copy for them
    steps: int = 0

    @property
    def widths(self) -> Tensor:
        """(units,) uint8."""
        return unpack(self.tensors["widths"], TAG, self.tensors["lows"].numel())

    @property
    def nbytes(self) -> dict[str, int]:
        return {"codes": sum(pool.numel() for pool in self.pools), **super().nbytes}

    @property
    def host_bytes(self) -> int:
        return sum(chunk.numel() for chunk in self.host)


@dataclass(frozen=True)
class RaggedCodec(Codec):
    """Midpoint codes of units at the widths ``widths`` asks for; re-encoded after every step where ``observes``."""

    layers: int
    kv_heads: int
    head_dim: int
    unit: Literal["head", "layer"]
    outliers: int  # at either end of a unit
    metadata: torch.dtype
    widths: Widths
    prompt_tokens: int
    rows: tuple[Tensor, ...] = ()  # attention of the prompt's last queries
    observes: bool = True
    shared: dict[str, Tensor] = field(default_factory=dict)

    def encode_prompt(self, x: Tensor, start: int) -> Block:
        return self._encode(x, start, self.prompt_tokens, self.rows)

    def encode(self, x: Tensor, start: int) -> Block:
        return self._encode(x, start, start + x.shape[-2], ())

    def _encode(self, x: Tensor, start: int, tokens: int, rows: tuple[Tensor, ...]) -> RaggedBlock:
        measured, fine = self.measure(x)
        widths = self.widths(measured["extents"].float(), rows, start, tokens).flatten()
        tensors = {"widths": pack(widths, TAG), **measured}
        flat = fine.flatten(0, -2)
        pools, slots = [], torch.empty(len(widths), dtype=torch.long, device=x.device)
        for width in range(WIDEST + 1):
            units = (widths == width).nonzero()[:, 0]
            slots[units] = torch.arange(len(units), device=x.device)
            pools.append(_packed(flat[units], width))
        host = (fine,) if self.observes else ()
        return RaggedBlock(x.shape[-2], tensors, tuple(pools), slots, host, rows)

    def measure(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Outliers, range of the rest, and codes at full width, of x (layers, kv_heads, tokens, head_dim)."""
        parts = []
        for layers in layer_slices(x):
            units = units_of(x[layers].float(), self.unit)
            part = bounds(units, self.outliers, self.metadata)
            low, extent = (part[name].float()[..., None] for name in ("lows", "extents"))
            parts.append({**part, "fine": midpoint_codes(units, low, extent, WIDEST)})
        joined = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
        return joined, joined.pop("fine")

    def extend(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        """Append tokens; they come last in unit order, hence last in their pools."""
        fresh = self.encode(x, start)
        assert isinstance(fresh, RaggedBlock)
        if not blocks:
            blocks.append(fresh)
            return self.decode(fresh)
        block = blocks[0]
        assert isinstance(block, RaggedBlock)
        new, base = fresh.widths, torch.tensor([len(pool) for pool in block.pools], device=x.device)
        tensors = {name: torch.cat([tensor, fresh.tensors[name]]) for name, tensor in block.tensors.items()}
        tensors["widths"] = pack(torch.cat([block.widths, new]), TAG)
        blocks[0] = replace(
            block, tokens=block.tokens + fresh.tokens, tensors=tensors,
            pools=tuple(torch.cat(pair) for pair in zip(block.pools, fresh.pools, strict=True)),
            slots=torch.cat([block.slots, fresh.slots + base[new.long()]]), host=_appended(block.host, fresh.host),
        )  # fmt: skip
        return self.decode(fresh)

    def observe(self, blocks: list[Block], queries: Tensor, attention: Tensor, start: int) -> Patch | None:
        block = blocks[0]
        assert isinstance(block, RaggedBlock)
        rows = self.widths.remember(block.rows, attention)
        old = block.widths
        new = self.widths(block.tensors["extents"].float(), rows, start, attention.shape[-1]).flatten()
        changed = (new != old).nonzero()[:, 0]
        block = blocks[0] = replace(block, rows=rows, steps=block.steps + attention.shape[-2])
        if not len(changed):
            return None
        block = blocks[0] = self._rewritten(block, old, new, changed)
        values = self._read(block, changed).unflatten(-1, (-1, self.head_dim)).flatten(0, 1)
        units = block.tensors["lows"].shape[2]
        token, layer = changed // (self.layers * units), changed // units % self.layers
        each = torch.arange(self.kv_heads // units, device=changed.device)  # heads in a unit
        head = (changed % units)[:, None] + each
        layer, token = (i[:, None].expand_as(head).flatten() for i in (layer, token))
        return Patch(layer, head.flatten(), token, values)

    def _rewritten(self, block: RaggedBlock, old: Tensor, new: Tensor, changed: Tensor) -> RaggedBlock:
        """Re-encode the changed units from the host copy; each pool is rebuilt in unit order."""
        fine = _units_of(block.host, changed, self.layers * block.tensors["lows"].shape[2])
        target, is_new = new[changed], new != old
        place = torch.empty_like(block.slots)  # of a changed unit among the fresh ones of its width
        pools, slots, fetched = [], block.slots.clone(), 0
        for width, pool in enumerate(block.pools):
            fresh = (target == width).nonzero()[:, 0]
            if not len(fresh) and not (old[changed] == width).any():
                pools.append(pool)
                continue
            place[changed[fresh]] = torch.arange(len(fresh), device=place.device) + len(pool)
            packed = _packed(fine[fresh], width)
            units = (new == width).nonzero()[:, 0]
            source = torch.where(is_new[units], place[units], block.slots[units])
            pools.append(torch.cat([pool, packed]).index_select(0, source))
            slots[units] = torch.arange(len(units), device=slots.device)
            fetched += int((old[changed[fresh]] < width).sum()) * packed.shape[-1]
        return replace(
            block, tensors={**block.tensors, "widths": pack(new, TAG)}, pools=tuple(pools), slots=slots,
            rewritten=block.rewritten + len(changed), fetched=block.fetched + fetched,
        )  # fmt: skip

    def decode(self, block: Block) -> Tensor:
        assert isinstance(block, RaggedBlock)
        values = self._read(block, None).view(block.tokens, self.layers, self.kv_heads, self.head_dim)
        return values.permute(1, 2, 0, 3)

    def _read(self, block: RaggedBlock, units: Tensor | None) -> Tensor:
        """Values (n, unit size) of some units (n,), or of all of them."""
        widths = block.widths if units is None else block.widths[units]
        size = self.head_dim * (1 if self.unit == "head" else self.kv_heads)
        out = torch.empty(len(widths), size, device=widths.device)
        flat = {name: tensor.flatten(0, 2) for name, tensor in block.tensors.items() if name != "widths"}
        for width, pool in enumerate(block.pools):
            at = (widths == width).nonzero()[:, 0]
            if not len(at):
                continue
            own = at if units is None else units[at]
            packed = pool if units is None else pool.index_select(0, block.slots[own])
            codes = unpack(packed, width, size) if width else packed.new_zeros(len(at), size)
            low, extent = (flat[name][own].float()[:, None] for name in ("lows", "extents"))
            values = midpoint_values(codes, low, extent, width)
            if self.outliers:  # positions are unsigned
                values.scatter_(-1, flat["positions"][own].long() & 0xFFFF, flat["outliers"][own].float())
            out[at] = values
        return out

    def bits(self, block: Block) -> Tensor:
        assert isinstance(block, RaggedBlock)
        size = self.head_dim * (1 if self.unit == "head" else self.kv_heads)
        row = torch.tensor([8.0 * pool.shape[-1] for pool in block.pools], device=block.slots.device)
        fixed = TAG + 16 * self.metadata.itemsize + 2 * self.outliers * 32
        bits = (row[block.widths.long()] + fixed) / size
        return bits.view(block.tensors["lows"].shape).permute(1, 2, 0)[..., None].cpu()

    def remarks(self, blocks: list[Block]) -> tuple[str, ...]:
        block = blocks[0] if blocks else None
        if not isinstance(block, RaggedBlock) or not block.steps:
            return ()
        share = block.rewritten / block.steps / max(1, block.tensors["lows"].numel())
        moved = block.fetched / block.steps / 1000
        return (f"{share:.1%} of the units re-encoded a step, {moved:.1f} kB a step fetched from the host copy",)


def units_of(x: Tensor, unit: str) -> Tensor:
    """(layers, kv_heads, tokens, head_dim) -> (tokens, layers, units, unit size)."""
    x = x.permute(2, 0, 1, 3)
    return x if unit == "head" else x.flatten(2).unsqueeze(2)


def bounds(units: Tensor, outliers: int, metadata: torch.dtype) -> dict[str, Tensor]:
    """Range of units (..., n) without their ``outliers`` highest and lowest elements, and those elements in fp16.

    The range is rounded outwards to ``metadata``, so that it holds every element and half a cell bounds the error.
    """
    high, above = units.topk(outliers + 1, -1)
    low, below = units.topk(outliers + 1, -1, largest=False)
    slack = torch.finfo(metadata).eps
    bottom = low[..., -1] - low[..., -1].abs() * slack
    lows = bottom.to(metadata)
    extents = ((high[..., -1] - lows.float()) * (1 + slack)).to(metadata)
    kept = {"lows": lows, "extents": extents}
    if outliers:
        kept["outliers"] = torch.cat([low[..., :-1], high[..., :-1]], -1).half()
        kept["positions"] = torch.cat([below[..., :-1], above[..., :-1]], -1).to(torch.int16)
    return kept


def _packed(fine: Tensor, width: int) -> Tensor:
    """Codes (n, unit size) of full width -> packed codes of ``width`` bits (n, bytes)."""
    return pack(fine >> (WIDEST - width), width) if width else fine[:, :0]


def _appended(chunks: tuple[Tensor, ...], fresh: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The prompt's chunk is never copied; generated tokens grow in a second one."""
    return (chunks[0], torch.cat([*chunks[1:], *fresh])) if chunks else fresh


def _units_of(chunks: tuple[Tensor, ...], units: Tensor, a_token: int) -> Tensor:
    """Rows of the host copy, (n, unit size); ``units`` ascend, ``a_token`` of them make a token."""
    first = chunks[0].flatten(0, 2)
    inside = units[units < len(first)]
    rows = [first.index_select(0, inside)]
    if len(inside) < len(units):
        rows.append(chunks[1].flatten(0, 2).index_select(0, units[len(inside) :] - len(first)))
    return torch.cat(rows)
