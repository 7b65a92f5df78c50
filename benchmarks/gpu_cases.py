"""What the GPU benchmark measures beside decode steps (gpu_decode_cases.py), case by case; a case is a few seconds to a
minute and is stored by itself.

A function named after an operation, with _case behind it, measures that operation.

Inputs are random in the models' real shapes; every fused row stands beside what a user could do instead and beside the
roofline, the bytes it must move over the measured copy bandwidth.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from gpu_decode_cases import FULL, LAYOUTS, stores
from gpu_method_cases import METHOD_CASES
from gpu_setting import Numbers, Setting, Shape
from kvq_kernels import (
    Grid,
    PackedGroups,
    decode_attention,
    packed_scores,
    packed_values,
    quantize_pack,
    unpack_dequantize,
)
from kvq_kernels.grouped import MODES, Axis
from kvq_kernels.launch import CANDIDATES
from torch import Tensor

TOKENS = (8192, 32768, 131072)
AXES: tuple[Axis, ...] = ("channels", "tokens")
GRID, SIGNED = Grid(2), Grid(2, 32, "symmetric")
Case = tuple[str, Callable[[Setting], Numbers]]


def cases(models: dict[str, Shape], tokens: tuple[int, ...] = TOKENS) -> Iterator[Case]:
    """Every case with its name, operation/model/length: quantizing first, then single products and methods."""
    for measure in (quantize_pack_case, packed_scores_case, packed_values_case, unpack_dequantize_case):
        for model, shape in models.items():
            for n in tokens:
                yield _named(measure, model, shape, n)
    for model, shape in list(models.items())[:1]:
        for n in tokens:
            for other in METHOD_CASES:
                yield _named(other, model, shape, n)
    for model, shape in models.items():
        yield _named(launch_case, model, shape, tokens[-1])


def _named(measure: Callable[[Setting, Shape, int], Numbers], model: str, shape: Shape, n: int) -> Case:
    return f"{measure.__name__.removesuffix('_case')}/{model}/{n}", lambda s: measure(s, shape, n)


def packed_scores_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """q.Kᵀ over 2-bit groups of 32 of both directions: InnerQ's Tables 3 and 4.

    Both have KIVI's grids, whose codes stay in their words either way; beside them stand the signed grids of InnerQ.
    """
    q, x = s.random(shape.kv_heads, shape.shared, shape.head_dim), s.random(shape.kv_heads, n, shape.head_dim)
    found: Numbers = {"matmul": s.ms(lambda: q @ x.transpose(-1, -2)), "matmul_roofline": s.roofline(x.numel() * 2)}
    for name, axis in (("inner", "channels"), ("outer", "tokens")):
        packed = quantize_pack(x, GRID, axis)
        found[name] = s.ms(lambda k=packed, a=axis: packed_scores(q, k, GRID, a, n))
        found[f"{name}_roofline"] = s.roofline(packed.nbytes)
        found[f"{name}_dequantize_matmul"] = s.ms(
            lambda k=packed, a=axis: q @ _dense(k, GRID, a, n, shape.head_dim).transpose(-1, -2)
        )
    for grid in (SIGNED, FULL):
        packed = quantize_pack(x, grid, "channels")
        found[f"inner_{grid.mode}"] = s.ms(lambda k=packed, g=grid: packed_scores(q, k, g, "channels", n))
        found[f"inner_{grid.mode}_roofline"] = s.roofline(packed.nbytes)
    return found


def packed_values_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """p.V, likewise."""
    p = torch.rand(shape.kv_heads, shape.shared, n, device=s.device).half()
    x = s.random(shape.kv_heads, n, shape.head_dim)
    found: Numbers = {"matmul": s.ms(lambda: p @ x), "matmul_roofline": s.roofline(x.numel() * 2)}
    for name, axis in (("inner", "tokens"), ("outer", "channels")):
        packed = quantize_pack(x, GRID, axis)
        found[name] = s.ms(lambda v=packed, a=axis: packed_values(p, v, GRID, a, shape.head_dim))
        found[f"{name}_roofline"] = s.roofline(packed.nbytes)
        found[f"{name}_dequantize_matmul"] = s.ms(lambda v=packed, a=axis: p @ _dense(v, GRID, a, n, shape.head_dim))
    for grid in (SIGNED, FULL):
        packed = quantize_pack(x, grid, "tokens")
        found[f"inner_{grid.mode}"] = s.ms(lambda v=packed, g=grid: packed_values(p, v, g, "tokens", shape.head_dim))
        found[f"inner_{grid.mode}_roofline"] = s.roofline(packed.nbytes)
    return found


def _dense(packed: PackedGroups, grid: Grid, axis: Any, n: int, dim: int) -> Tensor:
    return unpack_dequantize(packed, grid, axis, n if axis == "tokens" else dim, dtype=torch.float16)


def quantize_pack_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """Quantize and pack the keys or values of one layer's prompt: InnerQ's Figure 4."""
    x = s.random(shape.kv_heads, n, shape.head_dim)
    found: Numbers = {"copy": s.ms(x.clone)}
    for mode in MODES:
        grid = Grid(2, 32, mode, torch.float32)
        for axis in AXES:
            name, packed = f"{mode}_{axis}", quantize_pack(x, grid, axis)
            found[name] = s.ms(partial(quantize_pack, x, grid, axis))
            found |= s.beside(f"{name}_torch", partial(quantize_pack, x, grid, axis, "torch"))
            found[f"{name}_roofline"] = s.roofline(x.numel() * 2 + packed.nbytes)
    return found


def unpack_dequantize_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """Back to float16, which is what reading a packed cache without fused kernels costs."""
    x = s.random(shape.kv_heads, n, shape.head_dim)
    found: Numbers = {"copy": s.ms(x.clone)}
    for mode in MODES:
        grid = Grid(2, 32, mode, torch.float32)
        for axis in AXES:
            name, packed = f"{mode}_{axis}", quantize_pack(x, grid, axis)
            count = n if axis == "tokens" else shape.head_dim
            read = partial(unpack_dequantize, packed, grid, axis, count, dtype=torch.float16)
            found[name] = s.ms(read)
            found |= s.beside(f"{name}_torch", partial(read, path="torch"))
            found[f"{name}_roofline"] = s.roofline(x.numel() * 2 + packed.nbytes)
    return found


def launch_case(s: Setting, shape: Shape, n: int) -> Numbers:
    """Stages and registers of the decode kernel."""
    q = s.random(1, shape.query_heads, 1, shape.head_dim)
    found: Numbers = {}
    for name in LAYOUTS:
        keys, values = stores(s, (1, shape.kv_heads, n, shape.head_dim), name)
        for how in CANDIDATES:
            label = f"{name}_s{how.stages}_r{how.registers}"
            found[label] = s.ms(lambda k=keys, v=values, how=how: decode_attention(q, k, v, 0.1, how=how))
    return found
