"""A policy of layers that was run on prompts which were not scored, beside what is simpler: whether it is a gain."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvq_core.advice.choice import Option
from kvq_core.advice.grounds import Compared, PolicyGrounds
from kvq_core.advice.options import FitPlace
from kvq_core.decision.layer_plans import Candidate
from kvq_core.decision.scores import Sensitivity
from kvq_core.decision.verify import WIN
from kvq_core.spec import MAX_LANES, TENSORS, Lane

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ScoringBudget:
    """How much scoring of layers may take: lanes ``at_once``, and ``passes`` of so many lanes over a prompt; None: any
    number."""

    at_once: int = MAX_LANES
    passes: int | None = None

    def needed(self, formats: int, layers: int) -> int:
        """Passes for one prompt."""
        return -(-formats * len(TENSORS) * layers // self.at_once)


@dataclass(frozen=True)
class LayerPolicy:
    """A lane of layers in different formats and the plainest one beside it, ``ends``; ``offered``: uniform lanes which
    the study has not, of what engines ship, transformed too, that take no more; ``rows`` of all these on the prompts
    that were not scored; ``flags`` of the engine; ``predicted``: nats by label, of lanes of the candidates alone."""

    lane: Lane
    ends: Lane
    offered: tuple[Lane, ...]
    rows: "pd.DataFrame"
    flags: str | None
    scores: Sensitivity
    candidates: tuple[Candidate, ...]
    predicted: dict[str, float] = field(default_factory=dict)

    def beside(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """A study's rows and its own, of the prompts that it was run on."""
        import pandas as pd

        own = self.rows[self.rows["lane"].isin([each.label for each in self.lanes])]
        return pd.concat([rows[rows["prompt"].isin(own["prompt"])], own], ignore_index=True)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Those that may be the answer."""
        return (self.lane, *self.offered)

    def judged(self, options: Sequence[Option], rows: "pd.DataFrame") -> list[Option]:
        """The options, its own with its flags, and refused where a uniform lane of no more bytes is nearly as good."""
        losses = rows.groupby("lane")["kld_mean"].mean()
        own = next(option for option in options if option.label == self.lane.label)
        best = _rival(own, options, losses)
        near = best is not None and losses[best.label] < WIN * losses[own.label]
        why = f"it loses over 1/{WIN} of what {best.label} does, which takes no more" if best and near else None
        done = replace(own, flags=self.flags, refused=why, policy=True)
        return [done if option is own else option for option in options]

    def grounds(self, options: Sequence[Option], rows: "pd.DataFrame", place: FitPlace) -> PolicyGrounds:
        """It beside the best uniform lane of no more bytes, of the study or offered, and beside the plainest policy."""
        losses = rows.groupby("lane")["kld_mean"].mean()
        own = next(option for option in options if option.label == self.lane.label)
        best, ends = _rival(own, options, losses), place.option(self.ends)
        losses[ends.label] = self.rows.loc[self.rows["lane"] == ends.label, "kld_mean"].mean()
        shown = [("policy", own), *([("one format", best)] if best is not None else []), ("ends", ends)]
        return PolicyGrounds(
            lanes=tuple(
                Compared(
                    what=what,
                    label=option.label,
                    lane=dict(option.lane),
                    bytes=round(option.size),
                    predicted=self.predicted.get(option.label),
                    measured=float(losses[option.label]),
                )
                for what, option in shown
            ),
            beats=best is None or bool(WIN * losses[own.label] <= losses[best.label]),
            scored=len(self.scores.whole),
            unseen=int(rows["prompt"].nunique()),
            flags=self.flags,
        )


@dataclass(frozen=True)
class Without:
    """Why there is no policy; the ``scores`` and their ``candidates`` where layers were scored all the same."""

    why: str
    scores: Sensitivity | None = None
    candidates: tuple[Candidate, ...] = ()


def _rival(own: Option, options: Sequence[Option], losses: "pd.Series") -> Option | None:
    """The uniform lane of no more bytes that loses least, of those that the engine can have; None where there is
    none."""
    usable = [o for o in options if o.refused is None and o.label != own.label]
    others = [o for o in usable if o.size <= own.size and o.label in losses]
    return min(others, key=lambda option: losses[option.label], default=None)
