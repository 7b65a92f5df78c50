"""A store whose units (one token of a head, or of a layer) each have their own bit width, with outliers kept apart."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

import torch
from kvq_kernels import Path, midpoint_codes, mixed_dense, pack, packed_bytes, unit_values, unpack
from torch import Tensor

from kvq_core.codecs.blocks import Block, Patch
from kvq_core.codecs.codec import Codec, layer_slices
from kvq_core.codecs.forms import Packed
from kvq_core.methods.qaq.units import TAG, MixedRead, RaggedBlock, mixed_tokens, unit_ranges

WIDEST = 8


class Widths(Protocol):
    """Decides the width of every unit."""

    def __call__(self, extents: Tensor, rows: tuple[Tensor, ...], start: int, tokens: int) -> Tensor:
        """extents (stored tokens, layers, units), attention ``rows`` (layers, units, some tokens) of the last queries,
        oldest first, position of the first stored token, tokens in the cache -> uint8 widths like extents."""

    def remember(self, rows: tuple[Tensor, ...], attention: Tensor) -> tuple[Tensor, ...]:
        """The last rows once those of attention (layers, query_heads, fresh, tokens) have been added."""


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

    layerwise = True

    def packed(self, path: Path) -> Packed:
        return Packed(partial(MixedRead, self, path))

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
            slots.index_copy_(0, units, torch.arange(len(units), device=x.device))
            pools.append(_packed(flat.index_select(0, units), width))
        host = (fine.cpu(),) if self.observes else ()
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
        base = torch.tensor([len(pool) for pool in block.pools], device=x.device)
        tensors = {name: torch.cat([tensor, fresh.tensors[name]]) for name, tensor in block.tensors.items()}
        tensors["widths"] = pack(torch.cat([block.widths, fresh.widths]), TAG)
        pools = (torch.cat([a, b]) if len(b) else a for a, b in zip(block.pools, fresh.pools, strict=True))
        blocks[0] = replace(
            block,
            tokens=block.tokens + fresh.tokens,
            tensors=tensors,
            pools=tuple(pools),
            slots=torch.cat([block.slots, fresh.slots + base[fresh.widths.long()]]),
            host=_appended(block.host, fresh.host),
        )
        return self.decode(fresh)

    def begun(self, tokens: int) -> "RaggedCodec":
        return replace(self, prompt_tokens=tokens, rows=())  # the rows of later queries are not known yet

    def extend_prompt(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        return self.extend(blocks, x, start)  # one block, which is observed after every chunk

    def observe(self, blocks: list[Block], queries: Tensor, attention: Tensor, start: int) -> Patch | None:
        block = blocks[0]
        assert isinstance(block, RaggedBlock)
        rows = self.widths.remember(block.rows, attention)
        old = block.widths
        new = self.widths(block.tensors["extents"].float(), rows, start, attention.shape[-1]).flatten()
        changed = (new != old).nonzero()[:, 0]
        blocks[0] = block = replace(block, rows=rows, steps=block.steps + attention.shape[-2])
        if not len(changed):
            return None
        target, order = new.index_select(0, changed).sort(stable=True)  # by width, in unit order within one
        changed = changed.index_select(0, order)
        blocks[0], values = self._rewritten(block, old, new, changed, target)
        units = block.tensors["lows"].shape[2]
        token, layer = changed // (self.layers * units), changed // units % self.layers
        each = torch.arange(self.kv_heads // units, device=changed.device)  # heads in a unit
        head = (changed % units)[:, None] + each
        layer, token = (i[:, None].expand_as(head).flatten() for i in (layer, token))
        return Patch(layer, head.flatten(), token, values.view(-1, self.head_dim))

    def _rewritten(
        self, block: RaggedBlock, old: Tensor, new: Tensor, changed: Tensor, target: Tensor
    ) -> tuple[RaggedBlock, Tensor]:
        """Re-encode the changed units from the host copy, rebuild the pools they leave and enter, decode them."""
        fine = _units_of(block.host, changed)
        before = old.index_select(0, changed)
        left, entered = (torch.bincount(w, minlength=WIDEST + 1).tolist() for w in (before, target))
        slots, pools, codes = block.slots.clone(), list(block.pools), torch.empty_like(fine)
        first = 0
        for width, pool in enumerate(block.pools):
            own = slice(first, first := first + entered[width])
            if not left[width] and not entered[width]:
                continue
            packed = _packed(fine[own], width)
            codes[own] = _unpacked(packed, width, fine.shape[-1])
            slots.index_copy_(0, changed[own], torch.arange(len(pool), len(pool) + len(packed), device=slots.device))
            units = (new == width).nonzero()[:, 0]  # the slots of those that stayed are the old ones
            pools[width] = torch.cat([pool, packed]).index_select(0, slots.index_select(0, units))
            slots.index_copy_(0, units, torch.arange(len(units), device=slots.device))
        row = torch.tensor([pool.shape[-1] for pool in pools], device=slots.device)
        block = replace(
            block,
            tensors={**block.tensors, "widths": pack(new, TAG)},
            pools=tuple(pools),
            slots=slots,
            rewritten=block.rewritten + len(changed),
            fetched=block.fetched + int((row[target.long()] * (before < target)).sum()),
        )
        parts = (part.flatten(0, 2).index_select(0, changed) for part in unit_ranges(block))
        return block, unit_values(codes, target, *parts)

    def decode(self, block: Block) -> Tensor:
        assert isinstance(block, RaggedBlock)
        return mixed_dense(mixed_tokens(block), self.kv_heads, self.head_dim)

    def bits(self, block: Block) -> Tensor:
        assert isinstance(block, RaggedBlock)
        size = self.head_dim * (1 if self.unit == "head" else self.kv_heads)
        row = torch.tensor([8.0 * pool.shape[-1] for pool in block.pools], device=block.slots.device)
        fixed = TAG + 16 * self.metadata.itemsize + 2 * self.outliers * 32
        bits = (row[block.widths.long()] + fixed) / size
        return bits.view(block.tensors["lows"].shape).permute(1, 2, 0)[..., None].cpu()

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        size = self.head_dim * (1 if self.unit == "head" else self.kv_heads)
        kept = sum(b.tensors["positions"].numel() for b in blocks if "positions" in b.tensors)
        units = sum(b.tensors["lows"].numel() for b in blocks)  # each has as many outliers as any other
        share = kept / max(1, units * size)
        return {"outlier_share": torch.full((self.layers, self.kv_heads), share)}

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
    if not width or not len(fine):
        return fine.new_empty(len(fine), packed_bytes(fine.shape[-1], width) if width else 0)
    return pack(fine >> (WIDEST - width), width)


def _unpacked(packed: Tensor, width: int, size: int) -> Tensor:
    """Codes (n, unit size) of packed codes (n, bytes)."""
    return unpack(packed, width, size) if width and len(packed) else packed.new_zeros(len(packed), size)


def _appended(chunks: tuple[Tensor, ...], fresh: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The prompt's chunk is never copied; generated tokens grow in a second one."""
    return (chunks[0], torch.cat([*chunks[1:], *fresh])) if chunks else fresh


def _units_of(chunks: tuple[Tensor, ...], units: Tensor) -> Tensor:
    """Rows of the host copy, (n, unit size), where the units' numbers are."""
    at = units.to(chunks[0].device)
    first = chunks[0].flatten(0, 2)
    if len(chunks) == 1:
        return first.index_select(0, at).to(units.device)
    rows = first.index_select(0, at.clamp(max=len(first) - 1))
    late = (at >= len(first)).nonzero()[:, 0]
    fresh = chunks[1].flatten(0, 2).index_select(0, at[late] - len(first))
    return rows.index_copy_(0, late, fresh).to(units.device)
