"""Tiles of tokens whose rows and columns are brought to one spread before they are rounded: the store of KVarN."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from kvq_kernels import Path, pack, packed_bytes, unpack
from torch import Tensor

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, layer_slices
from kvq_core.codecs.forms import Packed
from kvq_core.codecs.hadamard import Hadamard

LEAST_STD, MOST_STD = 1e-3, 1e3  # of vLLM's quantization/kvarn/sinkhorn.py, as all numbers here
LOWEST, HIGHEST = -10.0, 10.0  # logarithms of scales; the lowest where no floor is set, so that fp16 holds it
LEAST_MIN, LEAST_STEP = 1e-8, 1e-10
LARGEST = 60000.0  # of what fp16 holds of a column that is divided by its scale
BATCH = 1 << 17  # elements normalized at once, which a processor's cache holds in float64


class Tiles(NamedTuple):
    """Of tiles (n, rows, columns), the scales that divide them: columns (n, columns), rows (n, rows), float32."""

    columns: Tensor
    rows: Tensor


def variance_normalize(tiles: Tensor, rounds: int, floor: float | None) -> Tiles:
    """Scales of columns and rows (n, rows, columns) after which both have nearly one standard deviation: each in turn
    is divided by its own, ``rounds`` times, no scale below exp(``floor``), and the most even state is kept
    (variance_normalize_batched).

    Deviations of a tile divided by both follow from sums over the tile and over its squares, in float64.
    """
    m = tiles.double()
    squares = m.square()
    n, rows, columns = m.shape
    low = LOWEST if floor is None else floor
    log_columns, log_rows = m.new_zeros(n, columns), m.new_zeros(n, rows)

    def of_columns() -> Tensor:
        return _deviations((-log_rows).exp(), m.mT, squares.mT) * (-log_columns).exp()

    def of_rows() -> Tensor:
        return _deviations((-log_columns).exp(), m, squares) * (-log_rows).exp()

    each_column = of_columns()
    least = _imbalance(each_column, of_rows())
    best_columns, best_rows = log_columns, log_rows
    for _ in range(rounds):
        log_columns = (log_columns + each_column.clamp(LEAST_STD, MOST_STD).log()).clamp(low, HIGHEST)
        before = of_rows()
        step = (log_rows + before.clamp(LEAST_STD, MOST_STD).log()).clamp(low, HIGHEST)
        each_row, log_rows = before * (log_rows - step).exp(), step
        each_column = of_columns()
        now = _imbalance(each_column, each_row)
        better = (now <= least)[:, None]
        least = torch.minimum(now, least)
        best_columns, best_rows = (
            torch.where(better, new, old) for new, old in ((log_columns, best_columns), (log_rows, best_rows))
        )
    held = m.abs().amax(1) / LARGEST  # of columns without any spread, which may be far from zero
    return Tiles(torch.maximum(best_columns.exp(), held).float(), best_rows.exp().float())


def _deviations(weights: Tensor, m: Tensor, squares: Tensor) -> Tensor:
    """Standard deviations (n, k) along the last dimension of m (n, k, j) times weights (n, j), with j - 1."""
    count = m.shape[-1]
    total = (m @ weights[..., None])[..., 0]
    square = (squares @ weights.square()[..., None])[..., 0]
    return ((square - total.square() / count) / max(1, count - 1)).clamp_min(0).sqrt()


def _imbalance(columns: Tensor, rows: Tensor) -> Tensor:
    """Largest over smallest deviation of the columns, and of the rows: (n,)."""
    return sum(x.amax(-1) / x.amin(-1).clamp_min(LEAST_MIN) for x in (columns, rows))  # type: ignore[return-value]


@dataclass(frozen=True)
class TileCodec(Codec):
    """Tiles of ``tile`` tokens of a KV head, a last one of fewer where no window holds it back, turned by ``turn``.
    Rows are channels where ``channels``, else tokens; each is rounded by itself.

    Stored, tile after tile: codes, and in fp16 step and smallest element of each row times the row's scale, and the
    scales of columns (kvarn_store.py).
    """

    bits_per_code: int
    tile: int
    channels: bool
    rounds: int
    floor: float | None
    turn: Hadamard

    def packed(self, path: Path) -> Packed:
        return Packed.decoded(self, path)

    def encode(self, x: Tensor, start: int) -> Block:
        parts = []
        for layers in layer_slices(x):
            runs = self.turn.turned(x[layers].float()).split(self._lengths(x.shape[-2]), -2)
            tiles = [self._store(run.unflatten(-2, (-1, min(self.tile, run.shape[-2])))) for run in runs]
            parts.append({name: torch.cat([tile[name] for tile in tiles], -1) for name in tiles[0]})
        return Block(x.shape[-2], {name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def decode(self, block: Block) -> Tensor:
        lengths, parts = self._lengths(block.tokens), []
        for layers in layer_slices(block.tensors["codes"], 1 << 18):
            tensors = {name: t[layers].split(self._sizes(name, lengths), -1) for name, t in block.tensors.items()}
            runs = [
                self._load({name: each[i] for name, each in tensors.items()}, min(self.tile, length)).flatten(-3, -2)
                for i, length in enumerate(lengths)
            ]
            parts.append(self.turn.back(torch.cat(runs, -2)))
        return torch.cat(parts)

    def bits(self, block: Block) -> Tensor:
        layers, heads = block.tensors["codes"].shape[:2]
        elements = layers * heads * block.tokens * self.turn.block
        return torch.tensor(8 * sum(block.nbytes.values()) / elements).view(1, 1, 1, 1)

    def _lengths(self, tokens: int) -> list[int]:
        """Tokens in whole tiles, and those of a last incomplete one."""
        rest = tokens % self.tile
        return [length for length in (tokens - rest, rest) if length]

    def _sizes(self, name: str, lengths: list[int]) -> list[int]:
        """Elements of a stored tensor that whole tiles, and a last one, take."""
        found = []
        for length in lengths:
            size = min(self.tile, length)
            rows, columns = (self.turn.block, size) if self.channels else (size, self.turn.block)
            codes = rows * packed_bytes(columns, self.bits_per_code)
            found.append(length // size * {"codes": codes, "columns": columns}.get(name, rows))
        return found

    def _store(self, tiles: Tensor) -> dict[str, Tensor]:
        """What is kept of tiles (layers, kv_heads, n, tokens, head_dim), turned: tensors (layers, kv_heads, ...)."""
        whole = (tiles.mT if self.channels else tiles).flatten(0, 2)
        last, parts = (1 << self.bits_per_code) - 1, []
        for m in whole.split(max(1, BATCH // whole[0].numel())):
            columns, rows = variance_normalize(m, self.rounds, self.floor)
            even = m / columns[:, None] / rows[..., None]
            low = even.amin(-1)
            steps = ((even.amax(-1) - low) / last).clamp_min(LEAST_STEP)
            codes = ((even - low[..., None]) / steps[..., None]).round().clamp(0, last).to(torch.uint8)
            kept = pack(codes, self.bits_per_code), (rows * steps).half(), (rows * low).half(), columns.half()
            parts.append(kept)
        names = ("codes", "scales", "zeros", "columns")
        found = zip(names, (torch.cat(tensors) for tensors in zip(*parts, strict=True)), strict=True)
        return {name: t.reshape(*tiles.shape[:2], -1) for name, t in found}

    def _load(self, tensors: dict[str, Tensor], size: int) -> Tensor:
        """float32 (layers, kv_heads, n, tokens, head_dim) of tiles of ``size`` tokens."""
        rows, columns = (self.turn.block, size) if self.channels else (size, self.turn.block)
        scales, zeros = (tensors[name].float().unflatten(-1, (-1, rows, 1)) for name in ("scales", "zeros"))
        codes = unpack(
            tensors["codes"].unflatten(-1, (-1, rows, packed_bytes(columns, self.bits_per_code))),
            self.bits_per_code,
            columns,
        )
        tiles = (codes.float() * scales + zeros) * tensors["columns"].float().unflatten(-1, (-1, 1, columns))
        return tiles.mT if self.channels else tiles
