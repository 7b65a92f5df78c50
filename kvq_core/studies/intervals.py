"""Intervals over prompts: a prompt is one sample, its tokens are not. Which kind holds, a simulation decided:
``benchmarks/intervals.py`` draws studies from log-normals as KLD is, docs/studies.md has its table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvq_core.analysis.scored import CONFIDENCE, P99, P999, TAIL_FROM, Tail

FEWEST = 5  # prompts from which there are intervals
RESAMPLES = 1999
LEAST_ERROR = 0.5  # of a resample, as a part of the sample's: with less, a few prompts nearly alike set the ends
_HELD = 250_000  # numbers that a batch of resamples holds at once: in a processor's cache


@dataclass(frozen=True)
class MeanInterval:
    """A figure with its 95 % interval; no ends where the prompts are too few."""

    value: float
    low: float | None = None
    high: float | None = None


def mean_interval(values: np.ndarray) -> MeanInterval:
    """The mean of non-negative values (prompts,), by the studentized bootstrap of its logarithm.

    Efron and Tibshirani 1993, 12.5: t* = (log m* - log m) / (s* / m*), with s the standard error of the mean m, whose
    quotient is the standard error of log m by the delta method. Of few and skewed values many draws leave out the one
    that carries the mean, and their own error is next to nothing: such a quotient is taken as LEAST_ERROR of the
    sample's (Polansky 2000 has other ways to the same end). The simulation covers as without it, by narrower intervals.
    """
    mean = float(np.mean(values))
    if len(values) < FEWEST:
        return MeanInterval(mean)
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    if not error > 0 or not mean > 0:
        return MeanInterval(mean, mean, mean)
    relative = error / mean
    from scipy.stats import bootstrap

    def studentized(drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        means = np.maximum(drawn.mean(axis), np.finfo(float).tiny)
        errors = drawn.std(axis, ddof=1) / drawn.shape[axis] ** 0.5
        return np.log(means / mean) / np.maximum(errors / means, LEAST_ERROR * relative)

    found = bootstrap(
        (values,),
        studentized,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        batch=max(1, _HELD // len(values)),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return MeanInterval(mean, float(mean * np.exp(-found.high * relative)), float(mean * np.exp(-found.low * relative)))


def tail_interval(by_prompt: Sequence[np.ndarray]) -> Tail | None:
    """The 99.9th percentile of pooled values, or from fewer than TAIL_FROM the 99th; None where there are none.

    Its interval is the percentile bootstrap that draws prompts: tokens of one prompt resemble one another.
    """
    pooled = np.concatenate(by_prompt) if by_prompt else np.empty(0)
    if not len(pooled):
        return None
    rank = P999 if len(pooled) >= TAIL_FROM else P99
    value = float(np.percentile(pooled, rank))
    if len(by_prompt) < FEWEST:
        return Tail(rank, value, None, None)
    from scipy.stats import bootstrap

    lengths = np.array([len(values) for values in by_prompt])
    owners = np.repeat(np.arange(len(by_prompt)), lengths)
    top = np.argsort(-pooled)[: max(1000, len(pooled) // 10)]  # no draw's tail reaches below the highest tenth
    highest, owner = pooled[top], owners[top]

    def percentile(drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        rows = drawn.reshape(-1, drawn.shape[-1])
        counts = np.stack([np.bincount(row, minlength=len(lengths)) for row in rows])
        through = counts.astype(np.int32)[:, owner].cumsum(1, dtype=np.int32)  # tokens of a draw, the highest first
        place = (counts @ lengths - 1) * (1 - rank / 100)  # as np.percentile has it, counted from the highest
        before = np.floor(place + 1e-9).astype(np.int32)
        upper, lower = (
            highest[np.minimum((through <= at[:, None]).sum(1), len(highest) - 1)] for at in (before, before + 1)
        )
        return (upper + (place - before) * (lower - upper)).reshape(drawn.shape[:-1])

    found = bootstrap(
        (np.arange(len(by_prompt)),),
        percentile,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        batch=max(1, _HELD // len(top)),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Tail(rank, value, float(found.low), float(found.high))


def share_interval(hits: int, of: int) -> MeanInterval | None:
    """A share with its Wilson interval; None of nothing."""
    if not of:
        return None
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(hits, of, alpha=1 - CONFIDENCE, method="wilson")
    return MeanInterval(hits / of, float(low), float(high))
