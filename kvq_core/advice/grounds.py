"""What an answer rests on beside its study: what layers cost, what is seen of them before a run, policies, and fits."""

from typing import Any

from kvq_core.decision.fronts import PolicyFront
from kvq_core.decision.scores import Score
from kvq_core.inspection import Inspection
from kvq_core.spec.part import SpecPart


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
