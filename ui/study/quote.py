"""What a study will take, and whether it may start here: shown before Start and checked at it, for page and API."""

from dataclasses import dataclass

from kvq_core.errors import LimitError
from kvq_core.pipeline.timings import Cost
from kvq_core.record.store import Store
from kvq_core.studies.cells import CellPlan, plan
from kvq_core.studies.estimate import StudyEstimate, estimate
from kvq_core.studies.intervals import FEWEST
from kvq_core.studies.spec import StudySpec
from ui.html.escape import safe
from ui.html.numbers import plural
from ui.service.admission import check_characters, check_lanes, check_prompts, too_much_work

MOST_TOLD = 5  # lines of a file that are told one by one


@dataclass(frozen=True)
class StudyQuote:
    """``estimate`` is what ``--dry-run`` prints of the plan on one worker; ``refusal``: why it may not start here."""

    plan: CellPlan
    estimate: StudyEstimate
    refusal: str | None

    @property
    def cost(self) -> Cost:
        """Of a cell, for others in the line."""
        left, todo = self.estimate.cost, max(1, self.estimate.todo)
        return Cost(None if left.seconds is None else left.seconds / todo, left.bytes)


def quote(spec: StudySpec, store: Store) -> StudyQuote:
    """Raises LimitError for more prompts, cells, lanes or text than are taken here; KvqError where it cannot be run."""
    check_lanes(spec.comparison)
    check_prompts(spec.prompts, max(1, len(spec.models)), len(spec.comparison.lanes))
    planned = plan(spec)
    for cell in planned.cells:
        check_characters(cell.spec)
    longest = max(planned.cells, key=lambda cell: cell.tokens)
    refusal = too_much_work(longest.tokens + longest.spec.max_new_tokens, len(longest.spec.lanes))
    said = refusal and f"The longest prompt, {longest.prompt.id}: {refusal}"
    return StudyQuote(planned, estimate(planned, store=store), said)


def admit(spec: StudySpec, store: Store) -> StudyQuote:
    """At Start. Raises KvqError where ``quote`` refuses."""
    found = quote(spec, store)
    if found.refusal:
        raise LimitError(found.refusal)
    return found


def quote_html(found: StudyQuote, broken: tuple[str, ...] = ()) -> str:
    """The estimate's own sentence; why it may not start, and what a reader should know before."""
    sentence = found.estimate.sentence
    refused = f'<p class="error refused">{safe(found.refusal)}</p>' if found.refusal else ""
    said = []
    if (count := len(found.plan.prompts)) < FEWEST:
        said.append(f"{plural(count, 'prompt')}: there will be no intervals; they need {FEWEST} or more.")
    if found.plan.left_out:
        said.append(f"Left out: {found.plan.left_out[0].why}")
    said += [passed] if (passed := found.plan.passed_over) else []
    said += [f"Left out: {line}" for line in broken[:MOST_TOLD]]
    if len(broken) > MOST_TOLD:
        said.append(f"{len(broken) - MOST_TOLD} more lines are left out.")
    warnings = "".join(f'<p class="warning">{safe(text)}</p>' for text in said)
    return f'<p class="estimate">{safe(sentence[0].upper() + sentence[1:])}</p>{refused}{warnings}'
