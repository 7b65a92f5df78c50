"""A finished run's rows once more: kept as they stand when its reference has ended, or led along its answer, as far up
the model as is asked for."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from kvq_core.codecs.stream import Stream
from kvq_core.engine.ahead import Ahead
from kvq_core.engine.cache import Part
from kvq_core.engine.decode import Decode
from kvq_core.engine.divergence import kl_divergence
from kvq_core.engine.key_log import KeyLog, Kit, LayerReached
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.machine.memory import free_bytes
from kvq_core.models import LoadedModel
from kvq_core.models.head import POSITIONS
from kvq_core.models.scoring import Scoring

SHARE = 8  # of free memory, one part in so many


def log_of(rows: Rows, tokens: int, layers: frozenset[int]) -> KeyLog | None:
    """A log of all rows as they stand, in some layers, up to so many ``tokens``; None where what would be kept of them
    takes more than a SHARE of free memory."""
    layers = layers.intersection(rows.place)  # others read the keys of an earlier one
    count, new = len(rows.lane_of), tokens - rows.prompt_tokens
    needed = 0
    for copies, held in zip(rows.copies, rows.layers, strict=True):
        _, _, heads, _, dim = copies.tail_keys.shape
        # queries of a few query heads a KV head come on top, and keys that were replaced: at most as many again
        needed += 4 * count * len(layers.intersection(held)) * heads * dim * (tokens + 16 * new)
    most = free_bytes(rows.copies[0].tail_keys.device) // SHARE
    return KeyLog(count, layers, most) if needed <= most else None


def kit_of(rows: Rows, log: KeyLog, prefill: SharedPrefill, scoring: Sequence[Scoring | None]) -> Kit | None:
    """What the log and the rows that it is of hold, while they still stand; None where it gave up."""
    if log.full:
        return None
    late = slice(0, rows.tokens - rows.prefix)
    at = torch.tensor([rows.held.index(lane) for lane in rows.lane_of[: log.rows]])
    keys = {}
    for layer in sorted(log.queries):
        group, i = rows.place[layer]
        copies = rows.copies[group]
        parts = copies.prefix_keys[i][at.to(copies.prefix_keys.device)], copies.tail_keys[i, : log.rows, :, late].mT
        keys[layer] = torch.cat([part.float() for part in parts], -1)
    queries = {layer: torch.cat(every, 2) for layer, every in log.queries.items()}
    asked = {layer: group.queries[i] for layer, (group, i) in prefill.place.items() if layer in queries}
    told = log.replaced, log.reads, tuple(scoring), rows.rope
    return Kit(rows.prompt_tokens, tuple(log.passes), keys, queries, asked, *told)


def stops_at(decode: Decode, layer: int) -> int:
    """Up to which layer lanes are led for what they hold in one: there are caches that ask all of a step at once."""
    caches = [state.cache for state in decode.states_running if state.cache is not None]
    whole = any(cache.stored_first or any(map(_asks_all, cache.parts)) for cache in caches)
    return decode.model.shape.layers - 1 if whole else layer


def _asks_all(part: Part) -> bool:
    """Whether what it stores of a layer may follow from steps of other layers."""
    stream = part.stream
    return stream.observes and not (isinstance(stream, Stream) and stream.codec is not None and stream.codec.layerwise)


class Divergences:
    """KLD of forced rows from the first one's next-token distributions, in nats, of what the head reads."""

    def __init__(self, model: LoadedModel):
        self._model = model
        self._waiting: list[Tensor] = []
        self._found: list[Tensor] = []

    def __call__(self, hidden: Tensor) -> None:
        """hidden (rows, tokens, hidden size) of a pass. The head reads POSITIONS of them at once: of one it would take
        as long."""
        self._waiting.append(hidden)
        if sum(part.shape[1] for part in self._waiting) >= POSITIONS:
            self._read()

    def of_lanes(self) -> Tensor:
        """(rows - 1, positions) nats; empty where nothing was seen."""
        self._read()
        return torch.cat(self._found, 1) if self._found else torch.empty(0, 0)

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for part in torch.cat(waiting, 1).split(POSITIONS, 1) if waiting else ():
            told = self._model.head(part).float().log_softmax(-1)
            self._found.append(kl_divergence(told[0], told[1:]).cpu())


def follow(decode: Decode, tokens: Sequence[int], until: int, seen: Divergences | None = None) -> Iterator[int]:
    """Feed the forced rows ``tokens`` up to the layer ``until``, for nothing above it is wanted; yields how many of
    them were fed. Where that is the last layer, ``seen`` is shown what comes of it, too."""
    rows, last = decode.rows, len(tokens) - 1
    rows.until = until if seen is None else None
    _stand_in(rows, until)
    start = 0
    for size in _sizes(decode, last):
        fed = list(tokens[start : start + size])
        with suppress(LayerReached):
            hidden = decode.passed(torch.tensor([fed] * len(rows.lane_of)), hidden=True)
            if seen is not None:
                seen(hidden)
        decode.settle(len(fed))
        start += size
        yield start


def _sizes(decode: Decode, tokens: int) -> list[int]:
    """How many of so many tokens each pass takes: as many as the run's own took where it was given its answer, else
    as many as read the same as one by one."""
    if decode.follow is not None and decode.model.shape.in_chunks:
        size = decode.spec.score_chunk
        return [min(size, tokens - start) for start in range(0, tokens, size)]
    caches = [state.cache for state in decode.states_running if state.cache is not None]
    ahead = Ahead(caches, len(decode.rows.lane_of) - len(caches))
    passes = ahead.passes(tokens) if decode.model.shape.in_chunks and tokens else None
    if passes is None:
        return [1] * tokens
    decode.rows.ahead = ahead
    return passes


def _stand_in(rows: Rows, until: int) -> None:
    """Layers above ``until`` store tokens that nobody reads: each the last of the prompt once more."""
    for copies, held in zip(rows.copies, rows.layers, strict=True):
        above = [i for i, layer in enumerate(held) if layer > until]
        for kind in ("key", "value") if above else ():
            prefix, tail = copies.of(kind)
            now = rows.prompt_tokens - rows.prefix
            last = tail[:, :, :, now - 1 : now] if now else prefix[:, :1, :, -1:]
            tail[above, :, :, now:] = last[above]
