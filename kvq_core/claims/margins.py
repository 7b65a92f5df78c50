"""The t-interval of a mean over a few texts, and what within noise means."""

from collections.abc import Sequence

CONFIDENCE = 0.95
NOISE = (
    f"A verdict is within noise where the {100 * CONFIDENCE:g} % t-interval over the texts of a margin it rests on "
    "includes 0: other texts may well turn it."
)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and the ends of its t-interval; the mean thrice where the values do not differ."""
    mean = sum(values) / len(values)
    if min(values) == max(values):
        return mean, mean, mean
    from scipy.stats import sem, t  # a second's import that most commands never need

    low, high = t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=sem(values))
    return mean, float(low), float(high)
