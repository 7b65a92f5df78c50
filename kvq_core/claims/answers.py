"""Answers that are right or wrong: tasks made from a seed under several lanes (CommVQ, Figure 2; scores of tables)."""

from collections.abc import Iterator
from typing import Any, Self, cast

from pydantic import Field, model_validator

from kvq_core.claims.measures import Context, Measure, Numbers
from kvq_core.claims.shares import PLACE, RIGHT
from kvq_core.errors import MethodError
from kvq_core.frozen import Frozen
from kvq_core.models import LoadedModel
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.prompt import script
from kvq_core.pipeline.state import Run
from kvq_core.spec import MAX_LANES, Capture, ComparisonSpec, Lane
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.task_suites import judge, new_tokens, suite

FP16 = "fp16"  # the reference's own answers


class TaskCase(Frozen):
    """``n`` prompts of a suite, by the name that they have in place of a text."""

    name: str
    suite: str
    n: int = Field(ge=1)
    seed: int = 0
    options: dict[str, Any] = {}

    def prompts(self) -> tuple[StudyPrompt, ...]:
        return suite(self.suite, n=self.n, seed=self.seed, **self.options)


class Answers(Measure):
    """The share of a case's prompts that a lane answers rightly, writing its own text, ``lane.right`` and
    ``fp16.right``; with ``depths`` also of those at each depth of a needle, in percent: ``lane.depth_25``. Every prompt
    is asked under the model's chat template, greedy."""

    reads_texts = False
    lanes: dict[str, Lane] = Field(max_length=MAX_LANES)
    cases_of: tuple[TaskCase, ...] = Field(min_length=1)
    depths: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if len({case.n for case in self.cases_of}) > 1:
            raise ValueError("cases ask different numbers of prompts; their mean is to be the share of all")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        lanes = (FP16, *self.lanes)
        return (*(f"{lane}{RIGHT}" for lane in lanes), *(_at(lane, depth) for lane in lanes for depth in self.depths))

    def cases(self, context: Context) -> dict[str, Numbers]:
        key = ("answers", self.model_dump_json())
        if key not in context.shared:  # several claims look at one run
            context.shared[key] = {case.name: self._numbers(context.model, case) for case in self.cases_of}
        return cast(dict[str, Numbers], context.shared[key])

    @property
    def asked(self) -> int:
        return sum(case.n for case in self.cases_of)

    def _numbers(self, model: LoadedModel, case: TaskCase) -> Numbers:
        right: dict[str, list[bool]] = {name: [] for name in self.names}
        for prompt in case.prompts():
            for lane, hit in self._right(model, case.suite, prompt):
                right[f"{lane}{RIGHT}"].append(hit)
                if self.depths:
                    right[_at(lane, cast(float, prompt.facts["depth"]))].append(hit)
        return {name: sum(hits) / len(hits) for name, hits in right.items()}

    def _right(self, model: LoadedModel, name: str, prompt: StudyPrompt) -> Iterator[tuple[str, bool]]:
        """By lane, the reference first."""
        spec = ComparisonSpec(
            model=model.id,
            prompt=prompt.prompt,
            max_new_tokens=new_tokens(name) or 1,
            lanes=tuple(lane.model_copy(update={"label": label}) for label, lane in self.lanes.items()),
            capture=Capture(detail="off"),
        )
        run = Run("claims", model, spec, script(model, spec))
        for _ in run.stages():
            pass
        record, _ = assemble(run)
        if failed := [lane for lane in record.lanes if lane.error]:
            raise MethodError(f"Lane {failed[0].label}: {failed[0].error}")
        for lane, text in ((FP16, record.reference.text), *((lane.label, lane.text) for lane in record.lanes)):
            yield lane, judge(cast(str, prompt.verifier), prompt.answer, text)


def _at(lane: str, depth: float) -> str:
    return f"{lane}{PLACE}{100 * depth:.0f}"
