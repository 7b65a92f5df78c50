"""Decode steps of attention over packed caches, which is what the kernels are for, beside fp16 and a plain read.

``decode``: one layer, replayed from a CUDA graph. ``eager``: the same launched by Python. ``layers``: all layers of a
model in sequence from one graph, as a real step reads them. A case holds everything it is compared with, measured in
turns on the same machine.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from gpu_baselines import fp16_calls
from gpu_setting import Numbers, Setting, Shape
from kvq_kernels import Grid, Layout, Store, decode_attention
from kvq_kernels.store import SIDES

MODELS = {
    "Llama-3.1-8B": Shape(8, 32, 128),
    "Llama-3.1-70B": Shape(8, 64, 128, 80),  # 8 query heads a KV head
    "Llama-3.2-1B": Shape(8, 32, 64, 16),
    "Llama-2-13B": Shape(40, 40, 128, 40),  # one
}
FULL = Grid(2, 32, "hybrid", torch.float32)
LAYOUTS = {
    "kivi-2": (Layout(Grid(2), "tokens", 0, 0, 128), Layout(Grid(2), "channels", 0, 128, 1)),
    "innerq-hybrid-2": (Layout(FULL, "channels", 32, 96, 1), Layout(FULL, "tokens", 32, 96, 32)),
    "kivi-4": (Layout(Grid(4), "tokens", 0, 0, 128), Layout(Grid(4), "channels", 0, 128, 1)),
}
RAGGED = 37  # tokens beyond whole blocks and groups, as a real cache has them


class Step(NamedTuple):
    """A case: rows of the batch, tokens of each, and whether they end raggedly."""

    part: str
    model: str
    batch: int
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.part}/{self.model}/b{self.batch}/{self.tokens}"


# The one that matters first, then what a kernel could fail at: long, many layers, shapes, batches, ragged ends.
STEPS = (
    Step("decode", "Llama-3.1-8B", 1, 65536),
    Step("decode", "Llama-3.1-8B", 1, 131072 + RAGGED),
    Step("layers", "Llama-3.1-8B", 1, 32768),
    Step("decode", "Llama-3.1-70B", 1, 131072),
    Step("decode", "Llama-3.2-1B", 1, 131072),
    Step("decode", "Llama-3.1-8B", 8, 32768 + RAGGED),
    Step("decode", "Llama-3.1-8B", 32, 8192),
    Step("layers", "Llama-3.1-8B", 8, 16384),
    Step("decode", "Llama-2-13B", 1, 65536),
    Step("eager", "Llama-3.1-8B", 1, 65536),
    Step("decode", "Llama-3.2-1B", 8, 32768),
    Step("decode", "Llama-3.1-70B", 8, 32768),
    Step("decode", "Llama-3.1-8B", 1, 32768),
    Step("decode", "Llama-3.1-8B", 1, 8192),
    Step("decode", "Llama-3.1-8B", 1, 262144),
)


def step_cases(
    models: dict[str, Shape], steps: tuple[Step, ...] = STEPS
) -> Iterator[tuple[str, Callable[[Setting], Numbers]]]:
    for step in steps:
        if step.model in models:
            yield step.name, partial(step_case, shape=models[step.model], step=step)


def step_case(s: Setting, shape: Shape, step: Step) -> Numbers:
    """Timings of every way to attend, and of reading as many bytes as each packed cache has."""
    layers = shape.layers if step.part == "layers" else 1
    q = s.random(step.batch, shape.query_heads, 1, shape.head_dim)
    size = (step.batch, shape.kv_heads, step.tokens, shape.head_dim)
    found: Numbers = {"fp16_bytes": 2 * 2 * layers * torch.Size(size).numel()}
    packed = {name: [stores(s, size, name) for _ in range(layers)] for name in LAYOUTS}
    calls: dict[str, Callable[[], Any]] = {name: _attend(q, caches) for name, caches in packed.items()}
    calls |= fp16_calls(q, [(s.random(*size), s.random(*size)) for _ in range(layers)])
    found |= s.clock.race(calls, graph=step.part != "eager")
    for name, caches in packed.items():
        nbytes = sum(store.nbytes for pair in caches for store in pair)
        found |= {f"{name}_bytes": nbytes, f"{name}_read": s.read(nbytes)}
    return found | {"fp16_read": s.read(found["fp16_bytes"])}


def _attend(q: torch.Tensor, caches: list[tuple[Store, Store]]) -> Callable[[], Any]:
    return lambda: [decode_attention(q, keys, values, q.shape[-1] ** -0.5) for keys, values in caches]


def stores(s: Setting, size: tuple[int, ...], name: str) -> tuple[Store, Store]:
    """Keys and values (batch, kv_heads, tokens, head_dim), the newest token not settled, as in a decode step; InnerQ's
    keys with norms. Room is made as a cache makes it that grows, and not to fit."""
    made = []
    batch, heads, tokens, dim = size
    for layout, side in zip(LAYOUTS[name], SIDES, strict=True):
        x = s.random(batch, heads, tokens - 1, dim)
        norms = x.abs().amax(-2, keepdim=True).sqrt().half() if side == "keys" and layout.sinks else None
        store = Store.empty(x, layout, side, norms=norms)
        store.fill(x)
        store.append(x[..., :1, :])
        made.append(store)
    return made[0], made[1]
