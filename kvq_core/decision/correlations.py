"""Rank correlations between what captures show and what it costs, with intervals over prompts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.decision.picture import PromptSeen
from kvq_core.decision.predictors import PREDICTORS
from kvq_core.studies.intervals import FEWEST, RESAMPLES

# All lanes, layers and prompts together; the layers of each lane and prompt, mean of their correlations; whole lanes.
LEVELS = ("layer", "layer of a lane", "lane")
LEAST = 3  # points that a correlation is told of
Part = list[np.ndarray]  # of a prompt: (points, 2) predictor and KLD, an entry a lane


def correlations(prompts: Sequence[PromptSeen]) -> list[dict[str, Any]]:
    """Of every level and predictor Spearman's rank correlation with the KLD, of ``n`` points, and its 95 % interval,
    which resamples prompts with all their points (cluster bootstrap); none from fewer than FEWEST prompts. Where there
    is no correlation it is None, and ``why`` says the reason. The strongest first."""
    found = [_row(prompts, name, level) for level in LEVELS for name in PREDICTORS]
    return sorted(found, key=lambda row: (LEVELS.index(row["level"]), -(row["spearman"] or -2.0)))


def _row(prompts: Sequence[PromptSeen], name: str, level: str) -> dict[str, Any]:
    parts = [_lanes(prompt, name, whole=level == "lane") for prompt in prompts]
    points = np.concatenate([np.empty((0, 2)), *(lane for own in parts for lane in own)])
    within = level == "layer of a lane"
    value = _correlation(parts, within)
    row: dict[str, Any] = {"predictor": name, "level": level, "spearman": value, "low": None, "high": None}
    if value is not None and len(parts) >= FEWEST:
        row["low"], row["high"] = _interval(parts, within)
    return {**row, "n": len(points), "why": _why(points) if value is None else None}


def _lanes(prompt: PromptSeen, name: str, whole: bool) -> Part:
    """Of each lane its points: of the whole of it one, else one a layer."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seen in prompt.seen:
        if (seen.layer is None) == whole and name in seen.predictors:
            found.setdefault(seen.lane, []).append((seen.predictors[name], seen.kld))
    return [np.array(points) for points in found.values()]


def _correlation(parts: Sequence[Part], within: bool) -> float | None:
    """Of all points together, or ``within`` each lane of a prompt; None where one side of all is constant."""
    from scipy.stats import spearmanr

    lanes = [np.empty((0, 2)), *(lane for own in parts for lane in own)]
    groups = [each for each in (lanes if within else [np.concatenate(lanes)]) if len(each) >= LEAST]
    found = [float(spearmanr(each).statistic) for each in groups if np.ptp(each, axis=0).all()]
    return sum(found) / len(found) if found else None


def _interval(parts: Sequence[Part], within: bool) -> list[float]:
    count = len(parts)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    each, times = np.unique(drawn, axis=0, return_counts=True)
    values = [
        _correlation([part for part, k in zip(parts, own, strict=True) for _ in range(k)], within) for own in each
    ]
    outside = 50 * (1 - CONFIDENCE)
    told = np.repeat(np.array(values, dtype=float), times)  # NaN where a resample has no correlation
    return [float(end) for end in np.nanpercentile(told, [outside, 100 - outside])]


def _why(points: np.ndarray) -> str:
    if len(points) < LEAST:
        return f"{len(points)} points; at least {LEAST} are needed" if len(points) else "not captured: there is none"
    side = "the KLD" if np.ptp(points[:, 0]) else "the predictor"
    return f"{side} is the same wherever ranks are compared"
