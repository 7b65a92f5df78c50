"""How often fewer prompts say what all of a study's say. ``benchmarks/one_prompt.py`` counts, and writes SHIPPED."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.analysis.verdict import Placed
from kvq_core.analysis.verdict import mean_interval as of_positions
from kvq_core.presets import FOLDER
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies.intervals import FEWEST, MeanInterval, mean_interval
from kvq_core.studies.summary import placed, pooled_column

if TYPE_CHECKING:
    import pandas as pd

SHIPPED = FOLDER / "table" / "one_prompt.json"
RESAMPLES = 2000  # of the prompts


def subsets(prompts: int, size: int) -> np.ndarray:
    """(subsets, size): every way to draw so many prompts without replacement, by their numbers."""
    return np.array(list(combinations(range(prompts), size)))


def tier_of(rows: "pd.DataFrame") -> Placed | None:
    """The tier of one lane by the prompts of these rows. From FEWEST on the interval of KLD is over prompts, as a study
    has it; fewer have none, and it is over their positions, as a run has it. None of too few scored positions."""
    if len(rows) < FEWEST:
        low, high = of_positions(pooled_column(rows, "kld").astype(np.float64).tobytes())
        return placed(rows, low, high)
    found = mean_interval(rows["kld_mean"].to_numpy())
    assert found.low is not None and found.high is not None
    return placed(rows, found.low, found.high)


def tier_said(fewer: Placed | None, study: Placed) -> str:
    """What fewer prompts say of a lane whose tier the study is sure of: it is ``right``; it is one of several that they
    leave ``open``; it is none of theirs, ``wrong``; or they have ``none``."""
    if fewer is None:
        return "none"
    if not fewer.best <= study.best <= fewer.worst:
        return "wrong"
    return "right" if fewer.sure else "open"


def agreement(hits: np.ndarray, drawn: np.ndarray, prompts: int) -> MeanInterval:
    """The share of ``hits`` (subsets, cases) that are true, with its 95 % interval, which resamples the prompts: all
    cases of a prompt are one sample. ``drawn`` (subsets, size): the numbers of the prompts in each, of ``prompts``.

    A subset counts as often as it can be drawn from a resample, which is the product of its prompts' counts there;
    resamples with fewer distinct prompts than ``size`` hold none and are left out.
    """
    own = hits.mean(1)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(prompts, np.full(prompts, 1 / prompts), RESAMPLES)
    weights = counts[:, drawn].prod(2).astype(float)
    weights = weights[weights.any(1)]
    outside = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(weights @ own / weights.sum(1), [outside, 100 - outside])
    return MeanInterval(float(own.mean()), float(low), float(high))


@cache
def shipped() -> dict[str, Any] | None:
    """What was counted of the study that ships; None where it was not, or of another version of results."""
    found = json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
    return found if found.get("results_version") == RESULTS_VERSION else None


def line_of(found: dict[str, Any], what: str, prompts: int, model: str | None = None) -> dict[str, Any]:
    """The figures of a ``what`` (tier or format), as ``shipped`` has them; ``model`` None: of all models together."""
    lines: Sequence[dict[str, Any]] = found["lines"]
    return next(line for line in lines if (line["what"], line["prompts"], line["model"]) == (what, prompts, model))
