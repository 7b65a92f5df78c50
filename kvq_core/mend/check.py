"""What an edit does on prompts that it was not chosen on: before a file is written, and in full precision beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvq_core.machine.progress import Progress, Report
from kvq_core.mend.edit import Edit
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.passes import Scored, read_through, score
from kvq_core.models import LoadedModel
from kvq_core.studies.intervals import CONFIDENCE, FEWEST, RESAMPLES, mean_interval


@dataclass
class Measured:
    """By prompt, of the original and the mended file under the format, and of the mended one in full precision."""

    before: list[Scored] = field(default_factory=list)
    after: list[Scored] = field(default_factory=list)
    full: list[Scored] = field(default_factory=list)

    def add(self, before: Scored, after: Scored, full: Scored) -> None:
        for held, each in zip((self.before, self.after, self.full), (before, after, full), strict=True):
            held.append(each)

    @property
    def kld(self) -> dict[str, float | None]:
        """Means with their 95 % intervals over prompts, of fewer than five without."""
        both = {name: mean_interval(_means(of)) for name, of in (("before", self.before), ("after", self.after))}
        values = {name: each.value for name, each in both.items()}
        ends = {f"{name}_{end}": getattr(each, end) for name, each in both.items() for end in ("low", "high")}
        return {**values, **ends}

    @property
    def full_precision(self) -> float:
        return float(_means(self.full).mean())

    @property
    def gain(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference of both, prompts drawn; None where these are too few, or a
        value is no number."""
        difference = _means(self.before) - _means(self.after)
        if len(difference) < FEWEST or not np.isfinite(difference).all():
            return None
        if not np.ptp(difference) > 0:
            return float(difference[0]), float(difference[0])
        from scipy.stats import bootstrap

        draws = np.random.default_rng(0)
        found = bootstrap((difference,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, rng=draws)
        return float(found.confidence_interval.low), float(found.confidence_interval.high)

    def data(self) -> dict[str, Any]:
        """As the JSON has it."""
        if not self.after:
            return {"kld": None, "full_precision_kld": None, "flips": None, "worst": None, "positions": 0, "prompts": 0}
        worst = int(np.argmax(_means(self.after)))
        flips = {name: sum(each.flips for each in of) for name, of in (("before", self.before), ("after", self.after))}
        return {
            "kld": self.kld,
            "full_precision_kld": self.full_precision,
            "flips": {**flips, "full_precision": sum(each.flips for each in self.full)},
            "worst": {"prompt": worst + 1, "kld": self.after[worst].mean},
            "positions": sum(len(each.kld) for each in self.after),
            "prompts": len(self.after),
        }


def check(
    model: LoadedModel, edit: Edit, form: CacheFormat, prompts: Sequence[list[int]], scored: int, report: Report
) -> Measured:
    """Every prompt read four times, its last tokens scored, each prompt by itself: the memory taken is that of one."""
    found = Measured()
    for number, ids in enumerate(prompts):
        report(Progress("Checking", number, len(prompts), "prompts"))
        own = read_through(model, ids, scored, None, None)
        edits = ((None, form), (edit, form), (edit, None))
        found.add(*(score(own, read_through(model, ids, scored, *each)) for each in edits))
    return found


def _means(of: Sequence[Scored]) -> np.ndarray:
    return np.array([each.mean for each in of])
