"""The forms of the kernels that matter, as operations really launch them, each with what it must keep to.

A form is a launch of one kernel with what is constant for the compiler: method, head_dim, query heads of a KV head.
Launches are recorded and not run, so that a form follows whatever kernel an operation has today.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from kvq_kernels.attention import decode_attention
from kvq_kernels.grouped import Axis, Grid, quantize_pack
from kvq_kernels.launch import LaunchRecord, record_launches
from kvq_kernels.layout import Layout
from kvq_kernels.store import SIDES, Store

from benchmarks.aot.compiler import elements

KV_HEADS = 8
TOKENS = 700  # of a prompt, which is no multiple of a tile
DIMS = (64, 80, 96, 128)
SHARED = (1, 4, 5, 8, 16)  # query heads of a KV head
CAPABILITIES = (80, 90)
FULL = Grid(2, 32, "hybrid", torch.float32)


class Method(NamedTuple):
    """How keys and values are held, and the most instructions an element that reading them may take."""

    title: str
    keys: Layout
    values: Layout
    most: float


def _kivi(bits: int) -> tuple[Layout, Layout]:
    return Layout(Grid(bits), "tokens", 0, 0, 128), Layout(Grid(bits), "channels", 0, 128, 1)


METHODS = {
    "kivi-2": Method("KIVI, 2 bits", *_kivi(2), 2.6),
    "innerq-hybrid-2": Method(
        "InnerQ hybrid, 2 bits", Layout(FULL, "channels", 32, 96, 1), Layout(FULL, "tokens", 32, 96, 32), 4.0
    ),
    "kivi-4": Method("KIVI, 4 bits", *_kivi(4), 3.2),
}
QUANTIZED = {"asymmetric": Grid(2), "hybrid": FULL}


@dataclass(frozen=True)
class Form:
    """One launch. ``tile``: elements of the cache that a program has in a turn of its main loop; ``nbytes``: how many
    bytes an element is held in; ``turns`` of the loop are made over the same elements."""

    operation: str
    method: str
    head_dim: int
    shared: int
    launch: LaunchRecord
    tile: int
    nbytes: float
    most: float | None = None
    turns: int = 1

    @property
    def name(self) -> str:
        return f"{self.operation}/{self.method}/d{self.head_dim}/q{self.shared}"


def decode_form(method: str, head_dim: int, shared: int) -> Form:
    """The kernel that reads the packed tokens of one decode step."""
    _, *layouts, most = METHODS[method]
    x = torch.zeros(1, KV_HEADS, TOKENS, head_dim)
    norms = torch.ones(1, KV_HEADS, 1, head_dim).half() if layouts[0].sinks else None
    stores = [Store.empty(x, layout, side, path="torch") for layout, side in zip(layouts, SIDES, strict=True)]
    stores[0].norms = norms
    for store in stores:
        store.fill(x)
        store.append(x[..., :1, :])
    q = torch.zeros(1, shared * KV_HEADS, 1, head_dim, dtype=torch.float16)
    with record_launches() as found:
        decode_attention(q, *stores, head_dim**-0.5, "triton")
    launch = next(entry for entry in found if "K_BITS" in entry.constants)
    nbytes = sum(bytes_an_element(layout.grid, layout.axis) for layout in layouts) / 2
    return Form("decode_attention", method, head_dim, shared, launch, elements(launch.constants), nbytes, most)


def decode_forms(
    methods: Sequence[str] = tuple(METHODS), dims: Sequence[int] = DIMS, shared: Sequence[int] = SHARED
) -> Iterator[Form]:
    for method in methods:
        for head_dim in dims:
            for each in shared:
                yield decode_form(method, head_dim, each)


def quantize_forms() -> Iterator[Form]:
    """Quantizing a prompt of head_dim 128 along either axis."""
    for mode, grid in QUANTIZED.items():
        for axis in ("channels", "tokens"):
            with record_launches() as found:
                quantize_pack(torch.zeros(KV_HEADS, 512, 128, dtype=torch.float16), grid, axis, "triton")
            tile, nbytes = elements(found[0].constants), 2 + bytes_an_element(grid, axis)
            yield Form("quantize_pack", f"{mode}-{axis}", 128, 1, found[0], tile, nbytes)


def bytes_an_element(grid: Grid, axis: Axis) -> float:
    """Codes, scales and zero-points of one element."""
    return quantize_pack(torch.zeros(1, 512, 128), grid, axis, "torch").nbytes / (512 * 128)
