"""Uniform lanes that a policy must beat beside those of its own candidates: every format that engines ship, as it is
and with each transform."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from kvq_core.analysis.deploy import of_rules
from kvq_core.decision.engine_flags import engine_formats
from kvq_core.decision.layer_plans import TOKENS, Candidate
from kvq_core.errors import SpecError
from kvq_core.methods import LayerKind, Method, ModelShape
from kvq_core.pipeline.lanes import rule_record
from kvq_core.sizing.count import CacheBytes, cache_bytes
from kvq_core.spec import Lane

FORMATS = 10  # that are measured, those of the most bytes that fit
# words for each transform of a format, and what a rule says of it
TRANSFORMS: dict[str, dict[str, Any]] = {
    "": {},
    ", keys centred": {"center": "mean"},
    ", rotated": {"rotate": "hadamard"},
}


@dataclass(frozen=True)
class DeployedLane:
    """``nbytes`` of TOKENS tokens, means of centred keys included; ``title``: the format and its transform."""

    lane: Lane
    nbytes: int
    title: str

    @property
    def titled(self) -> Lane:
        """The lane under its title."""
        return self.lane.model_copy(update={"label": self.title})


def deployed_lanes(
    shape: ModelShape, budget: int, engine: str | None, but: Sequence[Candidate] = ()
) -> list[DeployedLane]:
    """Of at most ``budget`` bytes, labelled by their numbers; of an engine that is named only what its flags can say.
    ``but``: formats that are candidates, which are left out as they are."""
    every = [each for each in engine_formats() if each.why_not(shape) is None and not _windowed(each.method)]
    sizes = {each: _taken(Lane.model_validate(each.data), shape) for each in every}
    own = sorted((each for each in every if sizes[each] <= budget), key=lambda each: -sizes[each])[:FORMATS]
    plain = {each.method for each in but}
    found: list[DeployedLane] = []
    for candidate in own:
        for words, transform in TRANSFORMS.items():
            lane = _lane(candidate, transform, f"offered {len(found)}")
            known = not transform and candidate.method in plain
            if lane is None or known or lane.why_not(shape) or (nbytes := _taken(lane, shape)) > budget:
                continue
            if engine is None or flags_of(lane, engine, shape.kinds) is not None:
                found.append(DeployedLane(lane, round(nbytes), f"{candidate.name}{words}"))
    return found


def flags_of(lane: Lane, engine: str, layers: Sequence[LayerKind]) -> str | None:
    """The command of an engine by its name; None where it cannot have the lane."""
    ways, _ = of_rules([rule_record(rule) for rule in lane.every_rule], layers)
    return next((way.how for way in ways if way.tool == engine), None)


def _windowed(method: Method) -> bool:
    """Whether some tokens stay in full precision, as on short prompts all of them would, at bytes of longer ones."""
    return any(window.packed(TOKENS) < TOKENS for window in method.windows())


def _taken(lane: Lane, shape: ModelShape) -> float:
    """Bytes of TOKENS tokens; none are enough of a lane whose bytes are not known."""
    found = cache_bytes(lane, shape, TOKENS, TOKENS)
    return found.tensors if isinstance(found, CacheBytes) else inf


def _lane(candidate: Candidate, transform: dict[str, Any], label: str) -> Lane | None:
    """None where the method refuses the transform."""
    try:
        return Lane.model_validate({**candidate.data, **transform, "label": label})
    except (SpecError, ValueError):
        return None


def measured_of(
    losses: Sequence[dict[str, float]], some: Sequence[DeployedLane]
) -> Iterator[tuple[DeployedLane, float]]:
    """Those that ran on every prompt, with their mean loss in nats."""
    for each in some:
        own = [found[each.lane.label] for found in losses if each.lane.label in found]
        if len(own) == len(losses):
            yield each, sum(own) / len(own)
