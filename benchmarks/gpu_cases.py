"""What the GPU benchmark measures, case by case; a case is a few seconds to a minute and is stored by itself.

Inputs are random in the models' real shapes; every fused row stands beside what a user could do instead and beside the
roofline, the bytes it must read over the measured copy bandwidth.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from gpu_timing import Clock
from kvq_kernels import (
    Grid,
    Layout,
    PackedGroups,
    Store,
    decode_attention,
    packed_scores,
    packed_values,
    quantize_pack,
    unpack_dequantize,
)
from kvq_kernels.commuted import codebook_scores
from kvq_kernels.latent import LatentKeys, latent_scores
from kvq_kernels.launch import CANDIDATES
from kvq_kernels.mixed import MixedTokens, mixed_scores
from kvq_kernels.rope_codebook import decode_pairs, join_pairs
from kvq_kernels.rotation import Turn, rotate
from torch import Tensor

Numbers = dict[str, float]


class Shape(NamedTuple):
    kv_heads: int
    query_heads: int
    head_dim: int


@dataclass(frozen=True)
class Setting:
    """Which models and lengths; the dry run's are tiny."""

    clock: Clock
    bandwidth: float
    models: dict[str, Shape]
    tokens: tuple[int, ...]

    @property
    def device(self) -> str:
        return self.clock.device

    def roofline(self, size: int) -> float:
        """Milliseconds to move ``size`` bytes."""
        return 1e3 * size / self.bandwidth

    def ms(self, call: Callable[[], Any]) -> float:
        return self.clock.median_ms(call)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.float16)


MODELS = {"Llama-3.2-1B": Shape(8, 32, 64), "Llama-3.1-8B": Shape(8, 32, 128), "Llama-2-13B": Shape(40, 40, 128)}
TOKENS = tuple(512 << i for i in range(9))  # 512 to 131,072
FULL = Grid(2, 32, "hybrid", torch.float32)
LAYOUTS = {
    "kivi": (Layout(Grid(2), "tokens", 0, 0, 128), Layout(Grid(2), "channels", 0, 128, 1)),
    "innerq": (Layout(FULL, "channels", 32, 96, 1), Layout(FULL, "tokens", 32, 96, 32)),
}
Case = tuple[str, Callable[[Setting], Numbers]]


def cases(models: dict[str, Shape], tokens: tuple[int, ...]) -> Iterator[Case]:
    """Every case with its name, part/model/length, shortest first within a part."""
    for model, shape in models.items():
        for n in tokens:
            yield f"products/{model}/{n}", lambda s, shape=shape, n=n: products(s, shape, n)
            yield f"quantize/{model}/{n}", lambda s, shape=shape, n=n: quantize(s, shape, n)
            yield f"decode/{model}/{n}", lambda s, shape=shape, n=n: decode(s, shape, n)
    large = models["Llama-3.1-8B"]
    for n in tokens[4::2]:  # 8K, 32K and 128K
        yield f"codebook/Llama-3.1-8B/{n}", lambda s, n=n: codebook(s, large, n)
        yield f"latent/Llama-3.1-8B/{n}", lambda s, n=n: latent(s, large, n)
        yield f"mixed/Llama-3.1-8B/{n}", lambda s, n=n: mixed(s, large, n)
    for n in tokens[4:8:3]:
        yield f"launch/Llama-3.1-8B/{n}", lambda s, n=n: launches(s, large, n)


def products(s: Setting, shape: Shape, n: int) -> Numbers:
    """q.Kᵀ and p.V over 2-bit groups of 32 of both directions: InnerQ's Tables 3 and 4."""
    heads, dim = shape.kv_heads, shape.head_dim
    q, p = (
        s.random(heads, shape.query_heads // heads, dim),
        torch.rand(heads, shape.query_heads // heads, n, device=s.device).half(),
    )
    x, grid = s.random(heads, n, dim), Grid(2, 32, "symmetric")
    found: Numbers = {
        "key_matmul": s.ms(lambda: q @ x.transpose(-1, -2)), "value_matmul": s.ms(lambda: p @ x),
        "matmul_roofline": s.roofline(x.numel() * 2),
    }  # fmt: skip
    for name, key_axis, value_axis in (("inner", "channels", "tokens"), ("outer", "tokens", "channels")):
        keys, values = quantize_pack(x, grid, key_axis), quantize_pack(x, grid, value_axis)
        found[f"key_{name}"] = s.ms(lambda k=keys, a=key_axis: packed_scores(q, k, grid, a, n))
        found[f"value_{name}"] = s.ms(lambda v=values, a=value_axis: packed_values(p, v, grid, a, dim))
        found[f"{name}_roofline"] = s.roofline(keys.nbytes)
        found[f"key_{name}_dequantize_matmul"] = s.ms(
            lambda k=keys, a=key_axis: q @ _dense(k, grid, a, n, dim).transpose(-1, -2)
        )
    return found


def _dense(packed: PackedGroups, grid: Grid, axis: Any, n: int, dim: int) -> Tensor:
    return unpack_dequantize(packed, grid, axis, n if axis == "tokens" else dim, dtype=torch.float16)


def quantize(s: Setting, shape: Shape, n: int) -> Numbers:
    """Quantize and pack the keys and values of one layer's prompt: InnerQ's Figure 4."""
    x = s.random(shape.kv_heads, n, shape.head_dim)
    found: Numbers = {}
    for mode in ("symmetric", "asymmetric", "hybrid"):
        grid = Grid(2, 32, mode, torch.float32)
        for axis in ("channels", "tokens"):
            packed = quantize_pack(x, grid, axis)
            found[f"{mode}_{axis}"] = s.ms(lambda g=grid, a=axis: quantize_pack(x, g, a))
            found[f"{mode}_{axis}_roofline"] = s.roofline(x.numel() * 2 + packed.nbytes)
    return found


def stores(s: Setting, shape: Shape, n: int, name: str) -> tuple[Store, Store]:
    """Keys and values of n tokens, the newest not settled, as in a decode step."""
    made = []
    for layout in LAYOUTS[name]:
        x = s.random(1, shape.kv_heads, n - 1, shape.head_dim)
        store = Store.empty(x, layout, n)
        store.fill(x)
        store.append(x[..., :1, :])
        made.append(store)
    return made[0], made[1]


def decode(s: Setting, shape: Shape, n: int) -> Numbers:
    """One step of attention in one layer, batch 1, beside torch's flash decoding and what dequantizing first costs."""
    q, x = s.random(1, shape.query_heads, 1, shape.head_dim), s.random(1, shape.kv_heads, n, shape.head_dim)
    attention, scaling = torch.nn.functional.scaled_dot_product_attention, shape.head_dim**-0.5
    y = s.random(1, shape.kv_heads, n, shape.head_dim)
    found: Numbers = {
        "sdpa": s.ms(lambda: attention(q, x, y, enable_gqa=True)),
        "sdpa_roofline": s.roofline(2 * x.numel() * 2),
    }
    for name in LAYOUTS:
        keys, values = stores(s, shape, n, name)
        found[name] = s.ms(lambda k=keys, v=values: decode_attention(q, k, v, scaling))
        found[f"{name}_roofline"] = s.roofline(keys.nbytes + values.nbytes)
        found[f"{name}_dequantize_sdpa"] = s.ms(
            lambda k=keys, v=values: attention(q, k.dense().half(), v.dense().half(), enable_gqa=True)
        )
    return found


def launches(s: Setting, shape: Shape, n: int) -> Numbers:
    """The candidate launch settings of the decode kernel."""
    q = s.random(1, shape.query_heads, 1, shape.head_dim)
    found: Numbers = {}
    for name in LAYOUTS:
        keys, values = stores(s, shape, n, name)
        for how in CANDIDATES:
            label = f"{name}_t{how.tokens}_w{how.warps}_s{how.stages}"
            found[label] = s.ms(lambda k=keys, v=values, how=how: decode_attention(q, k, v, 0.1, how=how))
    return found


def _turn(s: Setting, n: int, dim: int) -> Turn:
    half = dim // 2
    angles = torch.arange(n, device=s.device)[:, None] * 1e4 ** (-torch.arange(half, device=s.device) / half)
    return Turn(angles.cos(), angles.sin())


def codebook(s: Setting, shape: Shape, n: int, stages: int = 11, levels: int = 64) -> Numbers:
    """Scores of one layer's 1-bit CommVQ keys, decoded first or through the commuted tables: CommVQ's Table 5."""
    heads, half = shape.kv_heads, shape.head_dim // 2
    theta = s.random(heads, 1, stages, levels, half, 2)
    codes = torch.randint(0, 256, (heads, n * stages * 2 * 6 // 8), dtype=torch.uint8, device=s.device)
    plain = torch.randint(0, levels, (heads, 1, n, stages, 2), dtype=torch.uint8, device=s.device)
    scale = torch.rand(n, device=s.device).half()
    turn = _turn(s, n, shape.head_dim)
    q = s.random(heads, shape.query_heads // heads, shape.head_dim)

    def naive() -> Tensor:
        keys = join_pairs(decode_pairs(plain, theta)) * scale[:, None]
        return q.float() @ rotate(keys, turn).transpose(-1, -2)

    fused = s.ms(lambda: codebook_scores(q, theta, codes, scale, turn))
    size = codes.numel() + theta.numel() * 2 + turn.cos.numel() * 8
    return {"decode_first": s.ms(naive), "commuted": fused, "roofline": s.roofline(size)}


def latent(s: Setting, shape: Shape, n: int) -> Numbers:
    """SVDq's scores at a mean of 2 bits (8, 4, 4, 0, ...), beside fp16 keys."""
    heads, dim = shape.kv_heads, shape.head_dim
    kept, eighth = 3 * heads * dim // 8, heads * dim // 8
    codes = torch.randint(0, 16, (1, kept, n), dtype=torch.uint8, device=s.device)
    basis, meta = s.random(1, heads * dim, kept), s.random(1, kept)
    keys = LatentKeys.of(codes, [8] * eighth + [4] * 2 * eighth, meta, meta, basis, s.random(1, heads * dim))
    turn = _turn(s, n, dim)
    q, x = s.random(heads, shape.query_heads // heads, dim), s.random(heads, n, dim)
    size = keys.codes.numel() + basis.numel() * 2 + turn.cos.numel() * 8
    return {
        "fused": s.ms(lambda: latent_scores(q, keys, turn, n)), "roofline": s.roofline(size),
        "matmul": s.ms(lambda: q @ x.transpose(-1, -2)),
    }  # fmt: skip


def mixed(s: Setting, shape: Shape, n: int) -> Numbers:
    """QAQ's scores with widths 1 to 4 and one outlier at either end, beside fp16 keys."""
    heads, dim = shape.kv_heads, shape.head_dim
    widths = torch.randint(1, 5, (n, 1, heads), device=s.device)
    codes = torch.randint(0, 2, (n, 1, heads, dim), dtype=torch.uint8, device=s.device)
    positions = torch.tensor([0, dim - 1], device=s.device).expand(n, 1, heads, 2)
    meta = s.random(n, 1, heads)
    keys = MixedTokens.of(codes, widths, meta, meta.abs(), s.random(n, 1, heads, 2), positions)
    q, x = s.random(1, heads, shape.query_heads // heads, dim), s.random(1, heads, n, dim)
    size = sum(t.numel() * t.element_size() for t in keys)
    return {
        "fused": s.ms(lambda: mixed_scores(q, keys)), "roofline": s.roofline(size),
        "matmul": s.ms(lambda: q @ x.transpose(-1, -2)),
    }  # fmt: skip
