"""Measuring a lane as it would run: its cache packed, nothing beside it, one lane at a time."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from kvq_kernels import KernelError, Path, paths_taken
from kvq_kernels.dispatch import use_triton
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from kvq_core.errors import MethodError, ModelError, SpecError
from kvq_core.frozen import Frozen
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring
from kvq_core.models.survey import survey
from kvq_core.packed.cache import lane_layers
from kvq_core.packed.dense import DenseLayer
from kvq_core.packed.layer import PackedLayer
from kvq_core.packed.reader_layers import ReadingLayer, with_readers
from kvq_core.spec import Lane

WARM_UP = 2  # steps left out of the median: they compile kernels and make allocations
Limit = Literal["context", "batch"]
MOST: dict[Limit, int] = {"context": 1 << 22, "batch": 1 << 14}


class MeasureRequest(Frozen):
    """What to run: so many rows of so many prompt tokens, then so many steps."""

    tokens: int | None = Field(None, ge=1)  # the prompt is repeated or cut to this length; None leaves it as it is
    new_tokens: int = Field(32, ge=WARM_UP + 1, le=4096)
    batch: int = Field(1, ge=1, le=4096)
    path: Path = "auto"
    limits: tuple[Limit, ...] = ()


class LaneMeasurement(BaseModel):
    """One lane, measured. Bytes of the cache are those of its tensors; peaks exist on GPUs alone."""

    model_config = ConfigDict(frozen=True)

    label: str
    method: str | None  # None: the unquantized cache
    device: str
    dtype: str
    paths: dict[str, list[str]]  # which implementation each operation took
    batch: int
    prompt_tokens: int
    new_tokens: int
    token_ids: list[int]  # of the first row
    prefill_ms: float
    ms_per_token: float  # median of the steps after the first two
    cache_bytes: int  # of the tokens held
    allocated_bytes: int  # with the room ahead of them and what is kept to find and read them at once
    host_bytes: int = 0  # of copies in host memory that re-encoding reads
    peak_prefill_bytes: int | None = None
    peak_decode_bytes: int | None = None
    limits: dict[Limit, int] = Field(default_factory=dict)  # the most that fitted into memory

    @property
    def path(self) -> str:
        """Which implementation ran, or both; the unquantized cache is read by torch."""
        return "+".join(sorted({path for paths in self.paths.values() for path in paths}) or ["torch"])


Layers = Sequence[PackedLayer | DenseLayer | ReadingLayer]
Make = Callable[[int], Layers]  # tokens to allocate room for -> empty layers


def measure(model: LoadedModel, lane: Lane | None, ids: list[int], request: MeasureRequest) -> LaneMeasurement:
    """Run one lane, or for None the unquantized cache in the model's dtype.

    Raises MethodError where the lane has no packed execution, SpecError where the prompt and the new tokens exceed the
    model's context, ModelError where Triton or a limit is asked for on a machine without a GPU.
    """
    ids = _sized(ids, request.tokens)
    total = len(ids) + request.new_tokens
    make = _checked(model, lane, request, total)
    layers = make(total)
    run = _Run(model, layers)
    with paths_taken() as taken:
        chosen = run.step(torch.tensor([ids] * request.batch), 0)
        prefill_peak = run.peak()
        produced, seconds = run.decode(chosen, len(ids), total - 1)
    decode_peak = run.peak()
    sizes = ("nbytes", "allocated", "host_bytes")
    held, allocated, host = (sum(getattr(layer, name) for layer in layers) for name in sizes)
    tokens = [int(step[0]) for step in produced]
    prefill = run.first
    del run, layers
    return LaneMeasurement(
        label=label_of(lane, model),
        method=(lane.method or lane.title) if lane else None,
        device=_device(model),
        dtype=_name(model.dtype),
        paths={name: sorted(found) for name, found in taken.items()},
        batch=request.batch,
        prompt_tokens=len(ids),
        new_tokens=request.new_tokens,
        token_ids=tokens,
        prefill_ms=1e3 * prefill,
        ms_per_token=1e3 * statistics.median(seconds[WARM_UP - 1 :] or seconds),
        cache_bytes=held,
        allocated_bytes=allocated,
        host_bytes=host,
        peak_prefill_bytes=prefill_peak,
        peak_decode_bytes=decode_peak,
        limits={what: _limit(model, make, what, len(ids), request.batch) for what in request.limits},
    )


def _checked(model: LoadedModel, lane: Lane | None, request: MeasureRequest, total: int) -> Make:
    """What makes the layers of a lane that can be run with so many tokens, on this machine."""
    if total > model.shape.context:
        raise SpecError(f"{total} tokens exceed the {model.shape.context} of {model.id}; lower tokens or new_tokens.")
    try:
        use_triton("measure", request.path, torch.empty(0, device=model.device))
    except KernelError as error:
        raise ModelError(str(error)) from None
    make = _maker(model, lane, request.path)
    if request.limits and model.device.type != "cuda":
        raise ModelError("How much fits into memory is measured on GPUs only; leave the limits out here.")
    return make


def label_of(lane: Lane | None, model: LoadedModel) -> str:
    """What a lane, or for None the unquantized cache, is called."""
    return lane.label if lane else f"unquantized, {_name(model.dtype)}"


class _Run:
    """Greedy steps of one model over given layers."""

    def __init__(self, model: LoadedModel, layers: Layers):
        self.model, self.layers, self.first = model, layers, 0.0
        self.states = model.states()
        self.cuda = model.device.type == "cuda"
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def step(self, ids: Tensor, start: int) -> Tensor:
        """The most probable next token of each row, once it is really there."""
        began = time.perf_counter()
        logits = self.model.forward(ids, start, self._attend, last_only=True, states=self.states)
        chosen = logits[:, -1].argmax(-1).cpu()  # waits for the GPU
        if start == 0:
            self.first = time.perf_counter() - began
            self.model.checked(logits)
        return chosen

    def decode(self, chosen: Tensor, start: int, end: int) -> tuple[list[Tensor], list[float]]:
        """The next tokens from ``chosen`` at ``start`` on, with it, and the seconds of each step."""
        produced, seconds = [chosen], []
        for position in range(start, end):
            began = time.perf_counter()
            produced.append(self.step(produced[-1][:, None], position))
            seconds.append(time.perf_counter() - began)
        return produced, seconds

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        return self.layers[layer].attend(queries, keys, values, how)

    def peak(self) -> int | None:
        """Most bytes allocated on the GPU since the last call."""
        if not self.cuda:
            return None
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return most


def _maker(model: LoadedModel, lane: Lane | None, path: Path) -> Make:
    """What makes a lane's empty layers; refuses lanes without packed execution at once."""
    if lane is None:
        shape = model.shape
        return lambda room: with_readers(
            [DenseLayer(model.dtype, room, window=kind.window) for kind in shape.kinds], shape
        )
    rotations = model.rotations  # found before the shape is asked: it tells which are not known
    reason = lane.why_not(model.shape)
    if reason is not None:
        raise MethodError(f"{lane.label}: {reason}.")
    lane_layers(lane, model.model, path, 0, model.ref, rotations)
    return lambda room: lane_layers(lane, model.model, path, room, model.ref, rotations)


def _limit(model: LoadedModel, make: Make, what: Limit, tokens: int, batch: int) -> int:
    """The longest context at this batch, or the largest batch at this context, whose caches and one step fit."""

    def fits(size: int) -> bool:
        shape = (size, batch) if what == "context" else (tokens, size)
        try:
            _fill_and_step(model, make, *shape)
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()
        return True

    return largest(fits, 1024 if what == "context" else 1, MOST[what])


def _fill_and_step(model: LoadedModel, make: Make, tokens: int, batch: int) -> None:
    """Caches of random tokens, then one step: the memory of decoding at that length, without reading a prompt."""
    shape = model.shape
    layers = make(tokens + 1)
    for index in shape.keyed:
        layer, kind, device = layers[index], shape.kinds[index], model.layer_devices[index]
        random = partial(torch.randn, device=device, dtype=model.dtype)
        keys, values = (random(batch, kind.kv_heads, tokens, dim) for dim in (kind.key_dim, kind.value_dim))
        queries = random(batch, survey(model.model)[index].query_heads, 64, kind.key_dim)
        assert not isinstance(layer, ReadingLayer), "such a layer keeps no keys"
        layer.fill(queries, keys, values)
        del keys, values, queries
    _Run(model, layers).step(torch.zeros(batch, 1, dtype=torch.long), tokens)


def largest(fits: Callable[[int], bool], start: int, most: int) -> int:
    """The largest size that fits, to within a sixteenth: doubled until one does not, then halved in between.

    0 where even ``start`` does not fit; ``most`` ends the search.
    """
    good, bad = 0, start
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    while good and bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return min(good, most)


def _sized(ids: list[int], tokens: int | None) -> list[int]:
    """The prompt, repeated or cut to a length."""
    return ids if tokens is None else (ids * -(-tokens // len(ids)))[:tokens]


def _device(model: LoadedModel) -> str:
    return torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
