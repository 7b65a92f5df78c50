"""What a decision will take, before it is started."""

from dataclasses import dataclass
from datetime import timedelta

from kvq_core.advice.candidates import CANDIDATES
from kvq_core.advice.policy import ScoringBudget
from kvq_core.decision.sensitivity import POSITIONS
from kvq_core.models import outline
from kvq_core.pipeline.estimate import estimate_on
from kvq_core.record.store import Store
from kvq_core.spec import Capture
from kvq_core.studies.cells import CellPlan
from kvq_core.studies.estimate import StudyEstimate, estimate
from kvq_core.studies.intervals import FEWEST


@dataclass(frozen=True)
class DecisionForecast:
    """``study``: of its runs. ``passes`` of lanes over a prompt that scoring layers takes where it is called for, 0
    where there are too few prompts or they may not be scored; ``seconds`` of these, None where no such run was timed
    here."""

    study: StudyEstimate
    passes: int
    seconds: float | None

    @property
    def sentence(self) -> str:
        told = self.study
        runs = (
            f"{told.todo} of {told.cells} runs are to be computed" if told.todo else f"All {told.cells} runs are there"
        )
        took = "" if not told.todo else f", {_time(told.seconds)}, {told.bytes / 1e9:.2f} GB of memory"
        layers = (
            f" Layers, where they are tried: {self.passes} passes, {_time(self.seconds)}."
            if self.passes
            else f" Layers are not tried: that takes {2 * FEWEST} prompts."
            if told.cells < 2 * FEWEST
            else ""
        )
        return f"{runs}{took}.{layers}"


def forecast(planned: CellPlan, store: Store, scoring: ScoringBudget | None) -> DecisionForecast:
    """``scoring`` None: layers are not tried. Raises KvqError where a model or the store cannot be had."""
    told = estimate(planned, store=store)
    scored = planned.prompts[::2]
    if scoring is None or len(planned.prompts) < 2 * FEWEST or not planned.cells:
        return DecisionForecast(told, 0, None)
    needed = scoring.needed(CANDIDATES, outline(planned.cells[0].model).shape.layers)
    count = len(scored) if scoring.passes is None else min(len(scored), scoring.passes // needed)
    each = _pass_seconds(planned, scoring.at_once)
    return DecisionForecast(told, needed * count, None if each is None else each * needed * count)


def _pass_seconds(planned: CellPlan, lanes: int) -> float | None:
    """Of a pass of so many lanes, in formats of the study's, over a prompt of middle length, which is read in full
    precision."""
    cell = sorted(planned.cells, key=lambda each: each.tokens)[len(planned.cells) // 2]
    own = cell.spec.lanes
    like = tuple(own[at % len(own)].model_copy(update={"label": f"{at}", "prefill": "full"}) for at in range(lanes))
    new = {"max_new_tokens": POSITIONS, "capture": Capture(detail="off"), "free_text": False}
    return estimate_on(outline(cell.model), cell.spec.model_copy(update={**new, "lanes": like})).seconds


def _time(seconds: float | None) -> str:
    return (
        "a time that is not known before the first" if seconds is None else f"about {timedelta(seconds=round(seconds))}"
    )
