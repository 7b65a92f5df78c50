"""Figures of a lane on some tokens of its answer: what js/span.js computes in the browser, for tests of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvq_core.analysis.floors import lane_of, larger
from kvq_core.analysis.free_text import FreeText, free_text
from kvq_core.analysis.scored import At, Tail, tail
from kvq_core.analysis.span import fp16_token_bytes, token_bits
from kvq_core.analysis.verdict import Verdict, mean_interval, verdict_on
from kvq_core.pipeline.lane_metrics import tokens_a_step
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Metrics, Record
from kvq_core.record.memory import Memory


@dataclass(frozen=True)
class Span:
    """Tokens ``first`` to ``last`` of the reference's answer, both inside. The first token, 0, is scored nowhere."""

    first: int
    last: int

    @property
    def steps(self) -> slice:
        """Its scored positions: token i is predicted at position i - 1."""
        return slice(max(0, self.first - 1), max(0, self.last))


@dataclass(frozen=True)
class SpanFigures:
    """Of one lane, or a floor, over the scored positions of a span; None where nothing was scored or kept.

    KLD in nats, with the ends of the interval that the verdict is read by; shares as fractions; ``rms_dp`` in percent;
    bits an element and bytes of the span's tokens as they are stored at the end of the run.
    """

    scored: int
    kld_mean: float | None
    low: float | None
    high: float | None
    tail: Tail | None
    flips: int
    near_tie_flips: int
    above_floor: float | None
    acceptance: float | None
    tokens_a_step: float | None
    rms_dp: float | None
    ppl_ratio: float | None
    key_bits: float | None
    value_bits: float | None
    stored_bytes: float | None
    fp16_bytes: float | None
    verdict: Verdict

    @property
    def flip_rate(self) -> float | None:
        return self.flips / self.scored if self.scored else None


def span_figures(record: Record, arrays: Arrays, at: At, span: Span) -> SpanFigures:
    """What ``record.lanes[at].metrics`` and the verdict say, of a span alone."""
    lane = lane_of(record, at)
    kld, delta, nll, base, accepted = (
        _scored(arrays, f"{name}", span)
        for name in (f"lane/{at}/kld", f"lane/{at}/delta_p", f"lane/{at}/nll", "reference/nll", f"lane/{at}/acceptance")
    )
    flips, ties = _flips(arrays, lane, at, span)
    finite = bool(np.isfinite(kld).all())
    low, high = mean_interval(kld.tobytes()) if len(kld) > 1 and finite else (None, None)
    both = len(nll) == len(base) > 0
    keys, values = (_bits(record, arrays, at, kind, span) for kind in ("key", "value"))
    stored, plain = _bytes(record, lane.memory, keys, values)
    return SpanFigures(
        scored=len(kld),
        kld_mean=_mean(kld),
        low=low,
        high=high,
        tail=tail(kld) if finite else None,
        flips=flips,
        near_tie_flips=ties,
        above_floor=_above(record, arrays, at, kld, span),
        acceptance=_mean(accepted),
        tokens_a_step=tokens_a_step([torch.from_numpy(accepted)]),
        rms_dp=100 * math.sqrt(float((delta**2).mean())) if len(delta) else None,
        ppl_ratio=math.exp(float((nll - base).mean())) if both else None,
        key_bits=_mean(keys),
        value_bits=_mean(values),
        stored_bytes=stored,
        fp16_bytes=plain,
        verdict=verdict_on(
            lane,
            Metrics(n_scored=len(kld), flips=flips, near_tie_flips=ties),
            kld,
            free_text(record, at) if isinstance(at, int) else FreeText(None),
        ),
    )


def span_mean(values: np.ndarray, edges: Sequence[tuple[int, int]], span: Span) -> np.ndarray | None:
    """Mean over a span's steps of values (bins, ...), each that of the steps from one edge to the other; a bin that the
    span cuts counts whole. None where no bin is in it."""
    steps = span.steps
    weights = np.array([end - start if start < steps.stop and end > steps.start else 0 for start, end in edges])
    return np.average(values, 0, weights) if weights.any() else None


def stored_positions(record: Record, span: Span) -> range:
    """Places in the cache of a span's tokens; the answer's last token was never stored."""
    prompt, count = len(record.reference.prompt_token_ids), len(record.reference.token_ids)
    return range(prompt + span.first, prompt + min(span.last, count - 2) + 1)


def _scored(arrays: Arrays, name: str, span: Span) -> np.ndarray:
    return np.asarray(arrays.get(name, ()), dtype=np.float64)[span.steps]


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _flips(arrays: Arrays, lane: LaneRecord, at: At, span: Span) -> tuple[int, int]:
    """Flips of the most probable token, and those of them near a tie of the reference."""
    flipped = _scored(arrays, f"lane/{at}/same_top", span) == 0
    margin = _scored(arrays, "reference/margin", span)
    edge = lane.metrics.near_tie_margin if lane.metrics else 0.0
    ties = flipped & (margin <= np.float32(edge)) if len(margin) == len(flipped) else np.zeros_like(flipped)
    return int(flipped.sum()), int(ties.sum())


def _above(record: Record, arrays: Arrays, at: At, kld: np.ndarray, span: Span) -> float | None:
    floor = _scored(arrays, f"lane/{larger(record)}/kld", span)
    if not isinstance(at, int) or not len(kld) or len(floor) != len(kld):
        return None
    return float((kld > floor).mean())


def _bits(record: Record, arrays: Arrays, at: At, kind: str, span: Span) -> np.ndarray:
    places = stored_positions(record, span)
    return token_bits(arrays, at, kind)[places.start : places.stop]


def _bytes(
    record: Record, memory: Memory | None, keys: np.ndarray, values: np.ndarray
) -> tuple[float | None, float | None]:
    """Of the span's tokens as stored, and in fp16; captures are of keys and values of one size."""
    if memory is None or not len(keys) or len(keys) != len(values):
        return None, None
    plain = fp16_token_bytes(memory) * len(keys)
    return plain * float(keys.mean() + values.mean()) / 32, plain
