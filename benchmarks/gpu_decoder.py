"""A decoder of a real model's shape with random weights, for memory, latency and throughput against the batch."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from gpu_baselines import Attend
from kvq_kernels import Grid, Layout, Store, decode_step, squat_quantize, uncounted
from torch import Tensor


class Decoder(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int


LLAMA_2_7B = Decoder(32, 4096, 32, 32, 128, 11008, 32000)
LLAMA_3_8B = Decoder(32, 4096, 32, 8, 128, 14336, 128256)
FULL = Grid(2, 32, "hybrid", torch.float32)
INNERQ = Layout(FULL, "channels", 32, 96, 1), Layout(FULL, "tokens", 32, 96, 32)
KEYS = Layout(Grid(2), "tokens", 0, 0, 32)
VALUES = Layout(Grid(2), "channels", 0, 32, 1)


@dataclass
class Weights:
    """Projections of every layer, and the embedding, which also gives the logits."""

    layers: list[dict[str, Tensor]]
    embedding: Tensor

    @classmethod
    def random(cls, shape: Decoder, device: str, dtype: torch.dtype) -> "Weights":
        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, device=device, dtype=dtype) * rows**-0.5

        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        layers = [
            {
                "q": matrix(shape.hidden, wide),
                "k": matrix(shape.hidden, narrow),
                "v": matrix(shape.hidden, narrow),
                "o": matrix(wide, shape.hidden),
                "gate": matrix(shape.hidden, shape.feed_forward),
                "up": matrix(shape.hidden, shape.feed_forward),
                "down": matrix(shape.feed_forward, shape.hidden),
            }
            for _ in range(shape.layers)
        ]
        return cls(layers, matrix(shape.vocabulary, shape.hidden))

    @property
    def nbytes(self) -> int:
        tensors = [self.embedding, *(w for layer in self.layers for w in layer.values())]
        return sum(t.numel() * t.element_size() for t in tensors)


class Dense:
    """The fp16 cache, read by ``attention``. From ``captured`` on, steps write to its last place and read all of it,
    for a graph of torch's attention is of one length: the fastest that steps of fp16 can be."""

    stores: tuple[Store, ...] = ()

    def __init__(self, keys: Tensor, values: Tensor, room: int, attention: Attend):
        self.tokens, self.attention, self.still = keys.shape[-2], attention, False
        self.held = [
            torch.empty(*x.shape[:2], room, x.shape[-1], device=x.device, dtype=x.dtype) for x in (keys, values)
        ]
        for buffer, x in zip(self.held, (keys, values), strict=True):
            buffer[..., : self.tokens, :] = x

    @property
    def nbytes(self) -> int:
        return sum(t[..., : self.tokens, :].numel() * t.element_size() for t in self.held)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        for buffer, x in zip(self.held, (keys, values), strict=True):
            buffer[..., self.tokens : self.tokens + 1, :] = x
        k, v = (buffer[..., : self.tokens + 1, :] for buffer in self.held)
        self.tokens += not self.still
        return self.attention(q, k, v)

    def captured(self) -> bool:
        """Be ready for a step that is captured; whether it can be."""
        self.tokens, self.still = self.held[0].shape[-2] - 1, True
        return True


class Packed:
    """KIVI's cache, SQuat's, which differs in how keys are rounded, or InnerQ's; read packed or, with
    ``kivi_dequantized``, dequantized first."""

    def __init__(self, keys: Tensor, values: Tensor, room: int, kind: str):
        self.fused = kind != "kivi_dequantized"
        held = INNERQ if kind == "innerq" else (KEYS, VALUES)
        norms = keys.abs().amax(-2, keepdim=True).clamp_min(1e-4).sqrt().half() if kind == "innerq" else None
        half = keys.shape[-1] // 2
        update = torch.randn(keys.shape[1], half, half, device=keys.device) * 0.05
        encode = (lambda x, prompt: squat_quantize(x, (update,), half, KEYS.grid)) if kind == "squat" else None
        self.stores = [
            Store.empty(keys, held[0], "keys", room, norms, encode=encode),
            Store.empty(values, held[1], "values", room),
        ]
        for store, x in zip(self.stores, (keys, values), strict=True):
            store.fill(x)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.fused:
            return decode_step(q, keys, values, *self.stores, scaling=q.shape[-1] ** -0.5)
        for store, x in zip(self.stores, (keys, values), strict=True):
            store.append(x)
        k, v = (store.dense().to(q.dtype) for store in self.stores)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        for store in self.stores:
            store.pack_due()
        return out

    def captured(self) -> bool:
        """Whether a step can be captured."""
        return self.fused

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self.stores)


def cache(kind: str, keys: Tensor, values: Tensor, room: int, attention: Attend) -> Dense | Packed:
    if kind == "fp16":
        return Dense(keys, values, room, attention)
    return Packed(keys, values, room, kind)


def decoding(
    weights: Weights, shape: Decoder, kind: str, batch: int, prompt: int, new: int, bandwidth: float, attention: Attend
) -> dict[str, Any]:
    """Fill the caches with a random prompt, decode ``new`` tokens launched by Python and, on a GPU, ``new`` from a CUDA
    graph; report the peak, ms a token and tokens a second of the faster, and what reading weights and cache once takes
    at ``bandwidth`` bytes a second. ``eager``, ``graph``: ms of a step, quartiles, the median of each third of them.

    RoPE and norms are left out: they cost the same whatever the cache. Raises torch.OutOfMemoryError where it ends.
    """
    device, dtype = weights.embedding.device, weights.embedding.dtype
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    caches = []
    for _ in range(shape.layers):
        keys, values = (
            torch.randn(batch, shape.kv_heads, prompt, shape.head_dim, device=device, dtype=dtype) for _ in "kv"
        )
        caches.append(cache(kind, keys, values, prompt + 2 * new + 1, attention))
    x = torch.randn(batch, shape.hidden, device=device, dtype=dtype)

    def step() -> None:
        x.copy_(weights.embedding[_step(weights, shape, caches, x).argmax(-1)])

    found = {"eager": _timed(step, new, device)}
    ready = [held.captured() for held in caches]
    if cuda and all(ready):
        found["graph"] = _timed(_replayed(step, [store for held in caches for store in held.stores]), new, device)
    ms = min(each["ms"] for each in found.values())
    peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0
    read = weights.nbytes + sum(held.nbytes for held in caches)
    return {
        "peak_gb": peak,
        "ms_per_token": ms,
        "tokens_per_second": 1e3 * batch / ms,
        "roofline": 1e3 * read / bandwidth,
        **found,
    }


def _timed(step: Callable[[], Any], times: int, device: torch.device) -> dict[str, Any]:
    """Wall clock of each of so many steps."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return _spread([1e3 * each for each in seconds])


def _replayed(step: Callable[[], Any], stores: list[Store]) -> Callable[[], Any]:
    """The step from a CUDA graph, and what stores count on the host around it."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with uncounted(), torch.cuda.graph(graph):
        step()

    def play() -> None:
        for store in stores:
            store.reserve_step()
        graph.replay()
        for store in stores:
            store.count_step()

    return play


def _spread(times: list[float]) -> dict[str, Any]:
    """Median and quartiles, and the medians of the first, second and last third."""
    third = max(1, len(times) // 3)
    rounds = [median(times[i : i + third]) for i in range(0, 3 * third, third) if times[i:]]
    low, middle, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"ms": middle, "q1": low, "q3": high, "rounds": rounds}


def _step(weights: Weights, shape: Decoder, caches: list[Dense | Packed], x: Tensor) -> Tensor:
    batch = x.shape[0]
    for w, held in zip(weights.layers, caches, strict=True):
        q, k, v = (
            (x @ w[name]).view(batch, heads, 1, shape.head_dim)
            for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
        )
        x = x + held.attend(q, k, v).reshape(batch, -1) @ w["o"]
        x = x + (torch.nn.functional.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]
        x = x / x.float().square().mean(-1, keepdim=True).sqrt().to(x.dtype)
    return x @ weights.embedding.T
