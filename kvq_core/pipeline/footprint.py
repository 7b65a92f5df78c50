"""What a run holds in memory, by formula, and how many of its lanes go at once."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from kvq_core.capture.scores import MAP_BYTES, POSITION_BINS, SCORE_BYTES, STEP_BINS
from kvq_core.engine.ahead import pass_tokens, read_at_once
from kvq_core.engine.prefill import CHUNK, Precision
from kvq_core.engine.products import shared_tokens
from kvq_core.engine.script import Script
from kvq_core.machine.memory import room_for
from kvq_core.models import LoadedModel
from kvq_core.models.head import POSITIONS
from kvq_core.spec import ComparisonSpec, Lane

Each = TypeVar("Each")

STACKED = 1 << 29  # bytes of a prompt's float32 keys and values that are encoded or decoded at once on a GPU
# Lanes of a batch. The weights are read once a step whatever the rows: 30 lanes that are only forced, 1,000 + 64
# tokens, cost 9.7 generates by 8, 7.9 by 16 and 6.8 by 32.
AT_ONCE = 32
LOGIT_COPIES = (
    6  # of the logits scored at once: as computed, in float32, as log-probabilities of both sides and between
)
ALLOCATORS = 1.1  # measured peaks are up to 4 % above the sum of what is held: blocks are rounded up and kept
BASE_BYTES = 60_000_000  # what even the shortest run takes: libraries' buffers, threads' stacks, the tokens' texts


def held_of(model: LoadedModel, spec: ComparisonSpec, prompt: int, captured: bool) -> Precision:
    """How a run of so many ``prompt`` tokens holds them. On a CPU in float32; on a GPU, whose memory the weights nearly
    fill, as the model computes them, some layers at a time, and queries only where they are looked at again. Stressed
    tensors are no longer those that the model computes."""
    if model.device.type == "cpu" or spec.stress.active:
        return Precision()
    asked = any(assigned.method.needs_queries for lane in spec.lanes for assigned in lane.plan(model.shape))
    chosen = any(lane.selections(model.shape.keyed, model.shape.windowed) for lane in spec.lanes)
    watched = any(lane.chunks is not None for lane in spec.lanes) or spec.messages is not None
    layer = prompt * max(kind.elements for kind in model.shape.kinds) * 4
    return Precision(model.dtype, captured or asked or chosen or watched, max(1, STACKED // layer))


def batches(lanes: Sequence[Each], size: int) -> list[list[Each]]:
    """The lanes in the order given, ``size`` at once; one batch where there is no lane."""
    return [list(lanes[first : first + size]) for first in range(0, max(1, len(lanes)), size)]


def batch_size(model: LoadedModel, spec: ComparisonSpec, read: Script, new: int) -> int:
    """How many lanes go at once: AT_ONCE, or half as often as needed where memory that is free now is short of them,
    for results that differ in their last digits are better than none."""
    size, needed = AT_ONCE, run_bytes(model, spec, read, new, AT_ONCE)
    free = room_for(needed, model.device)
    while size > 1 and needed > free:
        size //= 2
        needed = run_bytes(model, spec, read, new, size)
    return size


def run_bytes(model: LoadedModel, spec: ComparisonSpec, read: Script, new: int, size: int) -> int:
    """The peak of what a run holds beside the weights, with at most ``size`` lanes a batch: the prompt's tensors, the
    float32 working copies of all rows of a batch, and what one stage holds for a moment, see ``_passing``;
    benchmarks/load.py compares it with measured peaks."""
    shape, prompt = model.shape, len(read.ids)
    how = held_of(model, spec, prompt, captured=spec.capture.detail != "off")
    token = sum(shape.kinds[i].elements for i in shape.keyed) * how.dtype.itemsize  # keys and values of one row
    lanes = min(size, len(spec.lanes)) + spec.forced_rows - len(spec.lanes)
    plans = [assigned for lane in spec.lanes for assigned in lane.plan(shape)]
    prefix = shared_tokens(min([assigned.frozen(prompt) for assigned in plans], default=prompt))
    copies = (lanes + 1) * prefix * token + (2 * lanes + 1) * (prompt + new - prefix) * token
    queries = len(shape.keyed) * shape.query_heads * shape.head_dim * how.dtype.itemsize * prompt * how.queries
    # at most 8 bits an element for nearly all methods, and their metadata
    stored = lanes * prompt * token // how.dtype.itemsize
    read_twice = (prompt * token + queries) * (spec.floors == "both")
    held = copies + prompt * token + queries + stored + read_twice
    if read.through(spec.lanes):  # before there are rows: own and read keys and values of the lanes of a pass
        held = max(held, held - copies + 2 * prompt * token * max(_together(lane, size) for lane in spec.lanes))
    held += (2 * lanes + 2) * 4 * sum(kind.conv + kind.recurrent for kind in shape.kinds)
    held += _captured(model, spec, prompt, new, min(size, len(spec.lanes)))
    held += _passing(model, spec, prompt, new, lanes, how)
    held += 4 * new * model.model.config.vocab_size * (spec.reference is not None)  # the kept logits
    return round(ALLOCATORS * held)


def _together(lane: Lane, size: int) -> int:
    """At most, how many lanes read a prompt through their caches at once, where all are like this one."""
    return 1 if lane.chunks is None else max(1, min(size, CHUNK // lane.chunks.chunk))


def _captured(model: LoadedModel, spec: ComparisonSpec, prompt: int, new: int, lanes: int) -> int:
    """Score maps of a batch's ``lanes`` in float32 while they are made, and the record's arrays three times while they
    are written."""
    if spec.capture.detail == "off":
        return 0
    shape, every, steps = model.shape, len(spec.lanes), max(1, new - 1)
    heads = shape.layers * shape.query_heads
    cells = heads * min(STEP_BINS, steps) * min(POSITION_BINS, prompt + new)  # of a lane
    statistics = 4 * heads * steps * 4
    tap_queries = heads * steps * shape.head_dim * 4
    written = min(SCORE_BYTES, every * cells + (every + 1) * statistics // 2)
    return 4 * min(MAP_BYTES, lanes * cells) + (lanes + 1) * statistics + tap_queries + 3 * written


def _passing(model: LoadedModel, spec: ComparisonSpec, prompt: int, new: int, lanes: int, how: Precision) -> int:
    """What a prefill chunk or a decode step computes with, the larger of the two, and what is encoded, decoded or
    measured at once."""
    shape, config = model.shape, model.model.config
    chunk = min(CHUNK, prompt)
    inner = getattr(config, "intermediate_size", 4 * config.hidden_size)
    width = 4 * config.hidden_size + 3 * (max(inner) if isinstance(inner, list) else inner)  # some say it by layer
    prefill = 4 * chunk * (width + shape.query_heads * prompt)
    given = spec.continuation is not None  # where it is, no row is free
    rows, fed, read = (lanes + 1, min(spec.score_chunk, new), POSITIONS) if given else (2 * lanes + 1, 1, 1)
    if not given and not spec.free_text and spec.capture.detail == "off":  # an answer that is known is fed in passes
        rows, fed = lanes + 1, min(new, pass_tokens(lanes + 1, shape.query_heads, prompt + new))
        read = read_at_once(rows)
    layer = 4 * rows * fed * (width + shape.query_heads * (prompt + new))
    if how.dtype != torch.float32:  # attention reads a layer's copies in float32
        layer += rows * (prompt + new) * max(kind.elements for kind in shape.kinds) * 4
    step = layer + LOGIT_COPIES * 4 * rows * min(read, fed) * config.vocab_size
    stacked = min(shape.layers, how.layers or shape.layers)
    measuring = 2 * prompt * stacked * max(kind.elements for kind in shape.kinds) * 4  # a lane's decoded prompt, twice
    return BASE_BYTES + measuring + max(prefill, step)
