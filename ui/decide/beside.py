"""The answer as a comparison to open: the recommended lane and the runner-up on the prompt that loses most."""

from collections.abc import Iterator

from kvq_core.errors import KvqError
from kvq_core.recommend.constraints import Advice
from kvq_core.recommend.decision import Decision
from kvq_core.spec import ComparisonSpec
from kvq_core.spec.links import encode
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.result import StudyResult
from ui.html.escape import safe
from ui.study.access import Results

FIELDS = ("prompt", "messages", "system", "tools")  # of a prompt that a comparison has, too


def beside_html(decision: Decision, results: Results) -> str:
    """A link that opens both lanes in Compare; why there is none where they cannot be asked; nothing without a lane."""
    found = decision.advice
    if found.lane is None:
        return ""
    try:
        result = results.get(found.study)
        prompt, asked = _linked(decision, result)
    except KvqError as error:
        return f'<p class="muted">It cannot be opened in Compare: {safe(error)}</p>'
    labels = [str(lane["label"]) for lane in _lanes(found)]
    both = "Open both in Compare" if len(labels) > 1 else "Open it in Compare"
    said = f"{' and '.join(labels)} on the prompt {prompt.id}"
    return f'<p class="beside"><a class="plain-button" href="?c={asked}">{both}</a> <small>{safe(said)}</small></p>'


def _linked(decision: Decision, result: StudyResult) -> tuple[StudyPrompt, str]:
    """The first of the prompts, the worst one before the others, that a link can hold. Raises KvqError."""
    first, *others = _prompts(decision, result)
    try:
        return first, encode(spec_of(decision, result, first))
    except KvqError as error:
        refusal = error
    for prompt in others:
        try:
            return prompt, encode(spec_of(decision, result, prompt))
        except KvqError:
            continue
    raise refusal


def _prompts(decision: Decision, result: StudyResult) -> Iterator[StudyPrompt]:
    known = {prompt.id: prompt for prompt in result.plan.prompts}
    worst = [known[each.prompt] for each in decision.advice.worst if each.prompt in known]
    yield from worst
    yield from (prompt for prompt in result.plan.prompts if prompt not in worst)


def spec_of(decision: Decision, result: StudyResult, prompt: StudyPrompt) -> ComparisonSpec:
    """The comparison of a prompt with the lanes of the answer. Raises KvqError."""
    return comparison_of(prompt, result, decision.advice.model, list(_lanes(decision.advice)))


def comparison_of(
    prompt: StudyPrompt, result: StudyResult, model: str, lanes: list[dict[str, object]]
) -> ComparisonSpec:
    """A prompt of a study with some lanes, all else as in the study. Raises KvqError."""
    base = result.plan.spec.comparison
    shared = {"model": model, "max_new_tokens": base.max_new_tokens, "chat": base.chat}
    return ComparisonSpec.model_validate({**shared, **_asked(prompt), "lanes": lanes})


def _lanes(found: Advice) -> Iterator[dict[str, object]]:
    """The recommended one first."""
    for label, lane in ((found.label, found.lane), (found.runner_up, found.runner_up_lane)):
        if lane is not None:
            yield {**lane, "label": label}


def _asked(prompt: StudyPrompt) -> dict[str, object]:
    given = {name: value for name in FIELDS if (value := getattr(prompt, name)) not in (None, "", ())}
    return given if prompt.messages is None else {**given, "chat": True}
