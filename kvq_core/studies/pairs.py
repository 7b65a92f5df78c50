"""Lanes against each other on the same prompts: paired differences, corrected for how many there are."""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.studies.intervals import FEWEST

if TYPE_CHECKING:
    import pandas as pd

POWER = 0.8  # with which as many prompts as are told would tell two lanes apart
MOST = 100_000  # prompts; where more are needed, nobody would ask them


@dataclass(frozen=True)
class PairedDifference:
    """Mean KLD of lane ``a`` less that of ``b`` over the prompts that both have, in nats, with its interval; ``p`` is
    corrected by Holm's method over all pairs of the model, or of different models. ``needed``: prompts that would tell
    the two apart, None where they are told apart or no number would. ``model_b``: of ``b``, where that is another."""

    model: str
    a: str
    b: str
    prompts: int
    difference: float
    low: float | None
    high: float | None
    p: float | None
    needed: int | None
    model_b: str | None = None

    @property
    def names(self) -> tuple[str, str]:
        """What the two are called, with their models where these differ."""
        return (
            (self.a, self.b) if self.model_b is None else (f"{self.a} on {self.model}", f"{self.b} on {self.model_b}")
        )

    @property
    def apart(self) -> bool:
        return self.p is not None and self.p < 1 - CONFIDENCE

    @property
    def sentence(self) -> str:
        """What can be said of the two in a line."""
        a, b = self.names
        if self.p is None:
            return f"{a} and {b}: too few prompts to compare them; give {FEWEST} or more."
        if self.apart:
            less, more = (a, b) if self.difference < 0 else (b, a)
            return f"{less} is closer to the reference than {more} (p = {self.p:.2g})."
        more = f"; about {self.needed:,} would" if self.needed else ""
        return f"{a} and {b} cannot be told apart with {self.prompts} prompts{more}."


def pairs(frame: "pd.DataFrame") -> list[PairedDifference]:
    """Every two lanes of every model; ``frame`` has a study's rows."""
    found: list[PairedDifference] = []
    for model, rows in frame.groupby("model", sort=False):
        means = rows.dropna(subset=["kld_mean"]).pivot(index="prompt", columns="lane", values="kld_mean")
        lanes = [lane for lane in rows["lane"].unique() if lane in means]
        found += _corrected([_pair(str(model), a, b, means[[a, b]]) for a, b in combinations(lanes, 2)])
    return found


def pairs_across(frame: "pd.DataFrame") -> list[PairedDifference]:
    """Every lane of a model against every lane of another: what a cache loses beside what other weights do. Only where
    all are scored against the logits of one reference."""
    means = frame.dropna(subset=["kld_mean"]).pivot(index="prompt", columns=["model", "lane"], values="kld_mean")
    places = [place for place in dict.fromkeys(zip(frame["model"], frame["lane"], strict=True)) if place in means]
    apart = [(one, other) for one, other in combinations(places, 2) if one[0] != other[0]]
    return _corrected([_pair(one[0], one[1], other[1], means[[one, other]], other[0]) for one, other in apart])


def _pair(
    model: str, a: str, b: str, means: "pd.DataFrame", model_b: str | None = None
) -> tuple[PairedDifference, float]:
    """A pair before correction, of ``means`` (prompts, 2), and its effect, see ``paired_test``."""
    one, other = means.dropna().to_numpy().T
    difference = one - other
    n = len(difference)
    mean = float(difference.mean()) if n else 0.0
    spread = float(difference.std(ddof=1)) if n > 1 else 0.0
    if n < FEWEST or not spread > 0:
        ends, p = (mean, 1.0) if n >= FEWEST else (None, None)
        return PairedDifference(model, a, b, n, mean, ends, ends, p, None, model_b), 0
    from scipy.stats import ttest_rel

    found = ttest_rel(one, other).confidence_interval(CONFIDENCE)
    p, effect = paired_test(one, other)
    return PairedDifference(model, a, b, n, mean, float(found.low), float(found.high), p, None, model_b), effect


def paired_test(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """p of what two lanes (prompts,) lose on the same prompts being the same, and the effect: a mean over its standard
    deviation.

    Two of Student's t tests have to find the same lane closer, and the one that finds less counts. Of the logarithm of
    the quotient on each prompt: it asks of a typical prompt, and holds its level where losses are log-normal. Of the
    logarithm of the quotient of the means, by the delta method: it asks of the mean. A test of the difference alone
    finds nothing where one lane loses hundreds of times what the other does, on every prompt but unevenly: the
    difference is that lane's loss then, and varies as widely. It is taken where a loss is zero.
    """
    from scipy.stats import ttest_1samp

    if min(a.min(), b.min()) <= 0:
        samples = [a - b]
    else:
        means = a.mean(), b.mean()
        samples = [np.log(a / b), np.log(means[0] / means[1]) + a / means[0] - b / means[1]]
    found = [(sample, float(sample.mean()), float(sample.std(ddof=1))) for sample in samples]
    effects = [
        mean / spread if spread > 0 else (np.copysign(np.inf, mean) if mean else 0.0) for _, mean, spread in found
    ]
    if not min(effects) * max(effects) > 0:
        return 1.0, 0.0
    tested = (float(ttest_1samp(sample, 0.0).pvalue) if spread > 0 else 0.0 for sample, _, spread in found)
    return max(tested), float(min(effects, key=abs))


def _corrected(raw: list[tuple[PairedDifference, float]]) -> list[PairedDifference]:
    from dataclasses import replace

    from statsmodels.stats.multitest import multipletests

    tested = [pair.p for pair, _ in raw if pair.p is not None]
    corrected = iter(multipletests(tested, method="holm")[1] if tested else ())
    found = [(replace(pair, p=None if pair.p is None else float(next(corrected))), effect) for pair, effect in raw]
    return [pair if pair.apart else replace(pair, needed=needed_prompts(effect, len(tested))) for pair, effect in found]


def needed_prompts(effect: float, tests: int) -> int | None:
    """Prompts with which a paired t test finds an effect of that size among so many tests."""
    from scipy.optimize import brentq
    from statsmodels.stats.power import TTestPower

    if not tests or abs(effect) < 1e-3:
        return None

    def lacking(prompts: float) -> float:
        power = float(TTestPower().power(abs(effect), prompts, (1 - CONFIDENCE) / tests))
        return POWER - (1.0 if math.isnan(power) else power)  # scipy knows no t distribution so far from its centre

    if lacking(MOST) > 0:
        return None
    return round(brentq(lacking, FEWEST, MOST)) if lacking(FEWEST) > 0 else FEWEST


@dataclass(frozen=True)
class Flip:
    """Two lanes told apart on two models, and the other way round."""

    a: str
    b: str
    a_closer: str  # a model on which lane a is closer to the reference
    b_closer: str


def flips_with_model(found: list[PairedDifference]) -> list[Flip]:
    """Pairs whose order is another on another model; only what is told apart on both counts."""
    by_lanes: dict[tuple[str, str], list[PairedDifference]] = {}
    for pair in found:
        if pair.apart:
            by_lanes.setdefault((pair.a, pair.b), []).append(pair)
    flips = []
    for (a, b), same in by_lanes.items():
        below = next((pair.model for pair in same if pair.difference < 0), None)
        above = next((pair.model for pair in same if pair.difference > 0), None)
        if below is not None and above is not None:
            flips.append(Flip(a, b, below, above))
    return flips
