"""What a decision will take, and whether it may start here: shown before Start and checked at it, for page and API."""

from contextlib import suppress
from dataclasses import dataclass

from kvq_core.analysis.choice import RECOMMENDED_FROM
from kvq_core.errors import LimitError, SpecError, StoreError
from kvq_core.recommend.decision import DecisionRequest, one_model
from kvq_core.recommend.policies import ScoringBudget
from kvq_core.recommend.recommend import DecisionForecast, forecast
from kvq_core.studies.example import adopt, packaged_ids
from kvq_core.studies.result import StudyResult
from kvq_core.studies.spec import StudySpec
from ui.decide.asked import STUDY, DecideForm, demand_lanes, new_study, scoring_budget
from ui.decide.work import Question
from ui.html.escape import safe
from ui.html.numbers import plural
from ui.service.services import Services
from ui.study.access import Results, demand_open
from ui.study.quote import StudyQuote, quote


@dataclass(frozen=True)
class DecisionQuote:
    """``refusal``: why it may not start here; ``warnings``: what a reader should know before."""

    question: Question
    forecast: DecisionForecast
    refusal: str | None
    warnings: tuple[str, ...] = ()


def quote_form(form: DecideForm, key: str, results: Results) -> DecisionQuote:
    """Of the form's prompts, or of the study that it names, which ``key`` opens on a public instance. Raises KvqError
    where it cannot be decided."""
    asked = form.asked
    files = form.files
    if form.source == STUDY:
        demand_open(results.services, form.study.strip(), key)
        result = results.get(form.study.strip())
        found = quote_study(result, picked_model(result, form.of_model), asked, form.layers, results.services)
    else:
        spec, broken = new_study(form)
        found = quote_spec(spec, asked, form.layers, results.services)
        found = DecisionQuote(found.question, found.forecast, found.refusal, (*found.warnings, *_left_out(broken)))
    question = Question(**{**vars(found.question), "weights": files})
    return DecisionQuote(question, found.forecast, found.refusal, found.warnings)


def picked_model(result: StudyResult, asked: str) -> str:
    """The id of a study's model, by its id or title; the first where it has none of that name."""
    known = {cell.model: cell.title for cell in result.plan.cells}
    return next((id for id, title in known.items() if asked in (id, title)), next(iter(known)))


def quote_spec(spec: StudySpec, asked: DecisionRequest, layers: bool, services: Services) -> DecisionQuote:
    """Of a study that is to be run. Raises KvqError."""
    demand_lanes(spec)
    told = quote(spec, services.store)
    return _quoted(told, told.plan.cells[0].model, asked, layers, services)


def quote_study(
    result: StudyResult, model: str | None, asked: DecisionRequest, layers: bool, services: Services
) -> DecisionQuote:
    """Of a study that was run, and of its ``model``, None: the only one; what is missing of it is computed first.
    Raises KvqError."""
    asked.ask()
    if result.id in packaged_ids():
        with suppress(StoreError):  # its rows are a by-product: without them its runs are computed
            adopt(result.id, services.store)
    return _quoted(quote(result.plan.spec, services.store), one_model(result, model), asked, layers, services)


def admit(found: DecisionQuote) -> Question:
    """At Start. Raises LimitError where ``quote`` refuses."""
    if found.refusal:
        raise LimitError(found.refusal)
    return found.question


def _quoted(told: StudyQuote, model: str, asked: DecisionRequest, layers: bool, services: Services) -> DecisionQuote:
    if not told.plan.cells:
        raise SpecError("None of these prompts fits the model's context; give shorter ones.")
    allowed: ScoringBudget | None = scoring_budget() if layers else None
    question = Question(told.plan, model, asked, scoring=allowed, cost=told.cost)
    said = []
    if (count := len(told.plan.prompts)) < RECOMMENDED_FROM:
        said.append(f"{plural(count, 'prompt')}: no flags will be given; that takes {RECOMMENDED_FROM} or more.")
    if told.plan.left_out:
        said.append(f"Left out: {told.plan.left_out[0].why}")
    if layers and allowed is None:
        said.append("Layers are not tried one by one on this instance.")
    refusal = told.refusal if told.estimate.todo else None
    return DecisionQuote(question, forecast(told.plan, services.store, allowed), refusal, tuple(said))


def _left_out(broken: tuple[str, ...]) -> list[str]:
    more = [f"{len(broken) - 5} more lines are left out."] if len(broken) > 5 else []
    return [*(f"Left out: {line}" for line in broken[:5]), *more]


def quote_html(found: DecisionQuote) -> str:
    """The forecast's own sentence; why it may not start, and what a reader should know before."""
    refused = f'<p class="error refused">{safe(found.refusal)}</p>' if found.refusal else ""
    warnings = "".join(f'<p class="warning">{safe(text)}</p>' for text in found.warnings)
    return f'<p class="estimate">{safe(found.forecast.sentence)}</p>{refused}{warnings}'
