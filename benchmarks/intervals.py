"""How often a study's intervals hold what they should: studies drawn from log-normals, into benchmarks/intervals.json.

``python benchmarks/intervals.py [--studies 2000]``. No times are measured, so it may run on a busy machine.
"""

import argparse
import json
from pathlib import Path
from unittest.mock import patch

import numpy as np

from kvq_core.studies import intervals
from kvq_core.studies.pairs import paired_test

FILE = Path(__file__).with_name("intervals.json")
SPREADS, PROMPTS = (0.1, 0.3, 0.5, 1.0, 2.0), (12, 30, 100)


def coverage(spread: float, prompts: int, studies: int) -> dict[str, float]:
    """Shares of studies: whose interval of the mean holds it, and whose paired test tells two equal lanes apart; and
    the upper end over the true mean that one study in twenty exceeds."""
    draw, mean = np.random.default_rng([prompts, round(100 * spread)]), np.exp(spread**2 / 2)
    held = apart = 0
    upper = []
    for _ in range(studies):
        found = intervals.mean_interval(np.exp(draw.normal(0, spread, prompts)))
        held += (found.low or 0.0) <= mean <= (found.high or 0.0)
        upper.append((found.high or 0.0) / mean)
        shared = draw.normal(0, spread, prompts)  # what makes a prompt hard for any lane
        a, b = (np.exp(shared + draw.normal(0, spread / 2, prompts)) for _ in range(2))
        apart += paired_test(a, b)[0] < 0.05
    shares = {"covered": held / studies, "apart": apart / studies, "upper": float(np.percentile(upper, 95))}
    return {"log_sd": spread, "prompts": prompts, **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=intervals.RESAMPLES)
    given = parser.parse_args()
    with patch.object(intervals, "RESAMPLES", given.resamples):
        rows = [coverage(spread, prompts, given.studies) for spread in SPREADS for prompts in PROMPTS]
    told = {"studies": given.studies, "resamples": given.resamples, "rows": rows}
    FILE.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
