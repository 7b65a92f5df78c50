"""Layer policies as evidence: what layers cost, what is seen of them before a run and how that goes along with it, and
a policy that was run on prompts which were not scored, beside what is simpler.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvq_core.inspection import Inspection
from kvq_core.recommend.evidence import Option
from kvq_core.recommend.fronts import PolicyFront
from kvq_core.recommend.held_out import WIN
from kvq_core.recommend.layer_plans import Candidate
from kvq_core.recommend.options import FitPlace
from kvq_core.recommend.sensitivity import Score, Sensitivity
from kvq_core.spec import MAX_LANES, TENSORS, Lane
from kvq_core.spec.part import SpecPart

if TYPE_CHECKING:
    import pandas as pd


class LayerSigns(SpecPart):
    """What is known of a layer's keys before any lane is run, None where it is not: the norm of the key projection's
    bias, the gain of the norm after it, the largest key channel over the median one, and what keys per token at 4 bits
    do to its attention scores, in nats. ``at_risk``: as inspection says."""

    layer: int
    key_bias: float | None
    key_norm_gain: float | None
    key_outliers: float | None
    score_error: float | None
    at_risk: bool


class Compared(SpecPart):
    """A lane of the policy's comparison: ``what`` is policy, one format (the best of the study's lanes that take no
    more bytes) or ends (first and last two layers in fp16); nats predicted by adding up, None of lanes that are no
    candidate's, and measured on prompts that were not scored; ``bytes`` of the cache that was asked for."""

    what: str
    label: str
    lane: dict[str, Any]
    bytes: int
    predicted: float | None
    measured: float


class PolicyGrounds(SpecPart):
    """``beats``: whether the policy loses at most half of what the best uniform lane does; ``scored`` prompts made it,
    ``unseen`` ones verified it; ``flags`` of the engine that was named; ``lane`` as rules."""

    lanes: tuple[Compared, ...]
    beats: bool
    scored: int
    unseen: int
    flags: str | None


class LaneFit(SpecPart):
    """The longest context of a lane in so many GB, beside the weights, at the batch that was asked for."""

    label: str
    contexts: dict[int, int | None]


class Grounds(SpecPart):
    """``scores``: of every format, tensor and layer, empty where layers were not scored; ``scores_id`` names them for
    the command. ``inspected``: what inspection says in a sentence, None where it did not look. ``own_context``: the
    model's."""

    scores_id: str | None = None
    scored: int = 0
    scores: tuple[Score, ...] = ()
    signs: tuple[LayerSigns, ...] = ()
    inspected: str | None = None
    fronts: tuple[PolicyFront, ...] = ()
    policy: PolicyGrounds | None = None
    fits: tuple[LaneFit, ...] = ()
    own_context: int | None = None


def signs_of(found: Inspection) -> tuple[LayerSigns, ...]:
    """Layer by layer."""
    figures = {layer.layer: layer for layer in found.figures}
    made = []
    for facts in found.facts.layers:
        own = figures.get(facts.layer)
        made.append(
            LayerSigns(
                layer=facts.layer,
                key_bias=facts.key_bias,
                key_norm_gain=facts.key_norm_gain,
                key_outliers=own and own.key_outliers,
                score_error=own and own.score_error,
                at_risk=facts.layer in found.at_risk_layers,
            )
        )
    return tuple(made)


SIGNS = {
    "score_error": "scores moved by keys at 4 bits",
    "key_outliers": "largest key channel",
    "key_bias": "norm of the key bias",
    "key_norm_gain": "gain of the key norm",
}
FEWEST = 5  # layers that a correlation is told of


class Predicts(SpecPart):
    """Spearman's ``rho`` over layers between a sign and the KLD of keys in a format."""

    sign: str
    words: str
    format: str
    rho: float


def predicts(found: Grounds) -> tuple[Predicts, ...]:
    """Of every sign that is known of all layers and every format that was scored, the strongest first."""
    from scipy.stats import spearmanr

    made = []
    for format in dict.fromkeys(score.format for score in found.scores):
        klds = {s.layer: s.kld_mean for s in found.scores if s.format == format and s.tensor == "keys"}
        for name, words in SIGNS.items():
            pairs = [(value, klds[each.layer]) for each in found.signs if (value := _of(each, name)) is not None]
            if len(pairs) < max(FEWEST, len(klds)) or len({value for value, _ in pairs}) < 2:
                continue
            rho = float(spearmanr(*zip(*pairs, strict=True)).statistic)
            if math.isfinite(rho):
                made.append(Predicts(sign=name, words=words, format=format, rho=rho))
    return tuple(sorted(made, key=lambda each: -abs(each.rho)))


def _of(each: LayerSigns, name: str) -> float | None:
    value: float | None = getattr(each, name)
    return value


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
