"""The launches that operations really make, recorded so that every kernel can be compiled without a GPU."""

import inspect
import pkgutil
import re
from importlib import import_module

import torch
from kvq_kernels import launch
from kvq_kernels.attention import decode_attention
from kvq_kernels.commuted import codebook_scores, codebook_values
from kvq_kernels.gemv import packed_scores, packed_values
from kvq_kernels.ggml import round_q8_0
from kvq_kernels.grouped import BITS, MODES, Grid, quantize_pack, unpack_dequantize
from kvq_kernels.latent import LatentKeys, latent_scores
from kvq_kernels.layout import Layout
from kvq_kernels.mixed import MixedTokens, mixed_scores, mixed_values
from kvq_kernels.rotation import Turn
from kvq_kernels.squat import squat_quantize
from kvq_kernels.step import decode_step
from kvq_kernels.store import Store

SIDES = ("keys", "values")
HEADS, DIM, TOKENS = 8, 128, 512  # the shapes of Llama-3.1-8B
TURN = Turn(torch.zeros(TOKENS, DIM // 2), torch.zeros(TOKENS, DIM // 2))


def kernels() -> dict[str, object]:
    """Every function of kvq_kernels.triton_ops that Triton compiles, helpers included, by name."""
    import triton
    from kvq_kernels import triton_ops

    found = {}
    for module in pkgutil.iter_modules(triton_ops.__path__):
        members = vars(import_module(f"kvq_kernels.triton_ops.{module.name}"))
        found |= {name: f for name, f in members.items() if isinstance(f, triton.runtime.jit.JITFunction)}
    return found


def called_by_kernels(functions: dict[str, object]) -> set[str]:
    """Names of those that other compiled functions call: no launch of their own compiles them."""
    sources = {name: inspect.getsource(f.fn) for name, f in functions.items()}
    return {
        name
        for name in functions
        if any(re.search(rf"\b{name}\(", text) for other, text in sources.items() if other != name)
    }


def groups(grid: Grid, axis: str):
    return quantize_pack(torch.zeros(HEADS, TOKENS, DIM), grid, axis, "torch")


def grouped_launches() -> None:
    """InnerQ's hybrid groups for the products that reduce over a group, KIVI's for the others, both ways of InnerQ's
    Tables 3 and 4, and 3 bits, whose codes cannot stay in their words."""
    q, p = torch.zeros(HEADS, 4, DIM, dtype=torch.float16), torch.zeros(HEADS, 4, TOKENS, dtype=torch.float16)
    hybrid = Grid(2, 32, "hybrid", torch.float32)
    for grid, axes in (
        (hybrid, ("channels", "tokens")),
        (Grid(2), ("channels", "tokens")),
        (Grid(3, 128), ("tokens",)),
    ):
        for axis in axes:
            quantize_pack(torch.zeros(HEADS, TOKENS, DIM, dtype=torch.float16), grid, axis, "triton")
    unpack_dequantize(groups(hybrid, "tokens"), hybrid, "tokens", TOKENS, "triton")
    inner, outer = ("channels", "tokens"), ("tokens", "channels")
    signed = Grid(2, 32, "symmetric")
    kinds = ((hybrid, inner), (Grid(2), outer), (signed, inner), (signed, outer), (Grid(3), inner), (Grid(3), outer))
    for grid, (key_axis, value_axis) in kinds:
        packed_scores(q, groups(grid, key_axis), grid, key_axis, TOKENS, "triton")
        packed_values(p, groups(grid, value_axis), grid, value_axis, DIM, "triton")
    packed_scores(q, groups(Grid(2), "tokens"), Grid(2), "tokens", TOKENS, "triton", turn=TURN)


def large_group_launches() -> None:
    """Groups of 128, which are read in pieces where their codes are taken out of their words."""
    q, p = torch.zeros(HEADS, 4, DIM, dtype=torch.float16), torch.zeros(HEADS, 4, TOKENS, dtype=torch.float16)
    packed_values(p, groups(Grid(4, 128), "channels"), Grid(4, 128), "channels", DIM, "triton")
    for bits in (2, 3):
        grid = Grid(bits, 128, "hybrid", torch.float32)
        packed_scores(q, groups(grid, "channels"), grid, "channels", TOKENS, "triton")
        packed_values(p, groups(grid, "tokens"), grid, "tokens", DIM, "triton")


def attention_launches() -> None:
    kivi = Layout(Grid(2), "tokens", 0, 0, 128), Layout(Grid(2), "channels", 0, 128, 1)
    wide = Grid(2, 32, "hybrid", torch.float32)
    innerq = Layout(wide, "channels", 32, 96, 1), Layout(wide, "tokens", 32, 96, 32)
    large = Layout(Grid(2, 128), "tokens", 0, 0, 128), Layout(Grid(2, 128), "channels", 0, 128, 1)
    spread = Layout(Grid(8), "tokens", 0, 0, 128), Layout(Grid(3), "channels", 0, 128, 1)
    for layouts in (kivi, innerq, large, spread):
        x = torch.zeros(1, HEADS, 700, DIM)
        norms = torch.ones(1, HEADS, 1, DIM).half() if layouts[0].sinks else None
        stores = [Store.empty(x, layout, side, path="torch") for layout, side in zip(layouts, SIDES, strict=True)]
        stores[0].norms = norms
        for store in stores:
            store.fill(x)
            store.append(x[..., :1, :])
        q = torch.zeros(1, 4 * HEADS, 1, DIM, dtype=torch.float16)
        decode_attention(q, *stores, 0.1, "triton")
        decode_step(q, q[:, :HEADS], q[:, :HEADS], *stores, 0.1, "triton")


def method_launches() -> None:
    round_q8_0(torch.zeros(HEADS, 4, DIM), "triton")
    updates = (torch.zeros(HEADS, DIM // 2, DIM // 2),)
    squat_quantize(torch.zeros(HEADS, TOKENS, DIM), updates, DIM // 2, Grid(2), "triton")
    q, p = torch.zeros(HEADS, 4, DIM, dtype=torch.float16), torch.zeros(HEADS, 4, TOKENS, dtype=torch.float16)
    kept = 64
    meta = torch.zeros(1, kept).half()
    basis, mean = torch.zeros(1, HEADS * DIM, kept).half(), torch.zeros(1, HEADS * DIM).half()
    codes = torch.zeros(1, kept, TOKENS, dtype=torch.uint8)
    latent = LatentKeys.of(codes, [4] * kept, meta, meta, basis, mean)
    latent_scores(q, latent, TURN, TOKENS, "triton")
    theta = torch.zeros(HEADS, 1, 11, 64, DIM // 2, 2)
    stream = torch.zeros(HEADS, TOKENS * 11 * 2 * 6 // 8, dtype=torch.uint8)
    codebook_scores(q, theta, stream, torch.zeros(TOKENS).half(), TURN, "triton")
    codebook_scores(q[:, :1], theta[:, :, :, :16], stream, torch.zeros(TOKENS).half(), TURN, "triton")  # 176 entries
    digits, book = torch.zeros(TOKENS, 128, dtype=torch.uint8), torch.zeros(1024, HEADS * DIM)
    codebook_values(p, digits, torch.zeros(TOKENS), book, torch.zeros(HEADS * DIM), "triton")
    unit, outliers = torch.zeros(TOKENS, 1, HEADS), torch.zeros(TOKENS, 1, HEADS, 2)
    codes = torch.zeros(TOKENS, 1, HEADS, DIM, dtype=torch.uint8)
    mixed = MixedTokens.of(codes, unit.int() + 3, unit.half(), unit.half(), outliers.half(), outliers)
    mixed_scores(q[None], mixed, "triton")
    mixed_values(p[None], mixed, DIM, "triton")


def smallest_grouped_launches() -> None:
    """Every width, and every kind of grid in both directions."""
    q, p = torch.zeros(1, 1, 32).half(), torch.zeros(1, 1, 1).half()
    for i, bits in enumerate(BITS):
        grid = Grid(bits, 32, MODES[i % len(MODES)], torch.float32 if i % 2 else torch.float16)
        for axis in ("channels", "tokens"):
            x = torch.zeros(1, 1, 32).half()
            packed, count = quantize_pack(x, grid, axis, "torch"), 1 if axis == "tokens" else 32
            quantize_pack(x, grid, axis, "triton")
            unpack_dequantize(packed, grid, axis, count, "triton")
            packed_scores(q, packed, grid, axis, 1, "triton")
            packed_values(p, packed, grid, axis, 32, "triton")
        layouts = Layout(grid, "channels", 1, 0, 1), Layout(grid, "tokens", 1, 1, 32)
        stores = [Store.empty(x[None], layout, side, path="torch") for layout, side in zip(layouts, SIDES, strict=True)]
        for store in stores:
            store.fill(x[None])
        decode_attention(q[None], *stores, 0.1, "triton")
        decode_step(q[None], q[None], q[None], *stores, 0.1, "triton")


def smallest_method_launches(dtype: torch.dtype) -> None:
    q, p, turn = torch.zeros(1, 1, 32, dtype=dtype), torch.zeros(1, 1, 1, dtype=dtype), Turn(*torch.zeros(2, 1, 16))
    packed_scores(q, quantize_pack(q, Grid(2), "tokens", "torch"), Grid(2), "tokens", 1, "triton", turn=turn)
    round_q8_0(torch.zeros(1, 1, 32), "triton")
    squat_quantize(torch.zeros(1, 1, 32), (), 32, Grid(2), "triton")
    squat_quantize(torch.zeros(1, 1, 32), (torch.zeros(1, 16, 16),), 16, Grid(3), "triton")
    one, meta = torch.zeros(1, 1, 1, dtype=torch.uint8), torch.zeros(1, 1).half()
    latent = LatentKeys.of(one, [1], meta, meta, torch.zeros(1, 32, 1).half(), torch.zeros(1, 32).half())
    latent_scores(q, latent, turn, 1, "triton")
    codebook_scores(q, torch.zeros(1, 1, 1, 2, 16, 2), one[0], torch.zeros(1).half(), turn, "triton")
    few = Turn(*torch.zeros(2, 5, 16))  # tokens enough for tables of the query
    codebook_scores(q, torch.zeros(1, 1, 1, 2, 16, 2), one[0, :, :1].expand(1, 2), torch.zeros(5).half(), few, "triton")
    codebook_values(p, one[0], torch.zeros(1), torch.zeros(1, 32), torch.zeros(32), "triton")
    unit, none = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, 0)
    mixed = MixedTokens.of(q[None].to(torch.uint8), unit, unit.half(), unit.half(), none.half(), none)
    mixed_scores(q[None], mixed, "triton")
    mixed_values(p[None], mixed, 32, "triton")


def launches() -> list[launch.LaunchRecord]:
    """Launches of every kernel in the forms that matter, recorded and not run; equal ones once."""
    with launch.record_launches() as found:
        for make in (grouped_launches, large_group_launches, attention_launches, method_launches):
            make()
    return _different(found)


def smallest_launches() -> list[launch.LaunchRecord]:
    """One token, head, query and row: a GPU's launches make constants of all the sizes that are 1."""
    with launch.record_launches() as found:
        smallest_grouped_launches()
        for dtype in (torch.float16, torch.float32):
            smallest_method_launches(dtype)
    return _different(found)


def _different(found: list[launch.LaunchRecord]) -> list[launch.LaunchRecord]:
    """Launches that differ in their constants, among which are sizes and strides of 1."""

    def form(entry: launch.LaunchRecord) -> str:
        ones = [name for name, value in entry.arguments.items() if isinstance(value, int) and value == 1]
        return f"{entry.kernel.__name__} {entry.constants} {ones}"

    return list({form(entry): entry for entry in found}.values())
