"""A study's cells: every model x prompt as one comparison with its own id, planned without any model's weights."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvq_core.errors import SpecError, excerpt
from kvq_core.machine.owner import demand_wanted
from kvq_core.machine.progress import Progress, Report, unreported
from kvq_core.models import LoadedModel, available_models, outline
from kvq_core.pipeline.answer import check_reference
from kvq_core.pipeline.assemble import id_of, place_of
from kvq_core.pipeline.compare import portable_spec
from kvq_core.pipeline.prompt import check_places, read_prompt, script
from kvq_core.spec import Capture, ComparisonSpec, Message, canonical_json
from kvq_core.spec.chats import Passed, passed_line
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.spec import StudySpec
from kvq_core.studies.task_suites import check_answer, left_out

# Of a comparison what a prompt decides; the rest, with all its lanes, is the same in all cells.
_BY_PROMPT = {"model", "revision", "prompt", "system", "messages", "tools", "last", "continuation", "free_text"}


@dataclass(frozen=True)
class Cell:
    """One model x prompt. ``id`` is that of its run in the store."""

    id: str
    model: str
    title: str  # of the model
    prompt: StudyPrompt
    spec: ComparisonSpec
    tokens: int  # of the prompt

    def full(self) -> ComparisonSpec:
        """The comparison as somebody would run it alone: with captures and every lane's own text."""
        return self.spec.model_copy(update={"capture": Capture(), "free_text": True})


@dataclass(frozen=True)
class LeftOut:
    """A prompt that a model cannot be asked, and why."""

    model: str
    prompt: str
    why: str


@dataclass(frozen=True)
class CellPlan:
    """All cells, model by model, and what is in none. ``broken``: lines of the file that were left out."""

    spec: StudySpec
    prompts: tuple[StudyPrompt, ...]
    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...]
    broken: tuple[str, ...]

    @cached_property
    def id(self) -> str:
        """16 hex characters over all runs and what is asked of them: the same study is the same on every machine."""
        prompts = [prompt.model_dump(mode="json", exclude_defaults=True) for prompt in self.prompts]
        told = canonical_json({"runs": [cell.id for cell in self.cells], "prompts": prompts})
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def passed_over(self) -> str | None:
        """What of its prompts was passed over, all together."""
        return passed_line(sum((prompt.passed for prompt in self.prompts), Passed()))

    def shard(self, number: int, count: int) -> tuple[Cell, ...]:
        """Every ``count``-th cell of each model from the ``number``-th on, counted from 1."""
        by_model = [[cell for cell in self.cells if cell.model == model] for model in self.models]
        return tuple(cell for cells in by_model for cell in cells[number - 1 :: count])

    @property
    def models(self) -> list[str]:
        """Ids of the models that have cells."""
        return list(dict.fromkeys(cell.model for cell in self.cells))

    def cell(self, prompt: str, model: str | None = None) -> Cell:
        """The cell of a prompt's id, of the first model unless one is named. Raises SpecError where there is none."""
        for cell in self.cells:
            if cell.prompt.id == prompt and model in (None, cell.model, cell.title):
                return cell
        raise SpecError(
            f"No cell of this study has the prompt {prompt!r}{f' and the model {model!r}' if model else ''}."
        )


def plan(spec: StudySpec, progress: Report = unreported) -> CellPlan:
    """The cells of a study, with the ids their runs have on this machine. Reads prompts and tokenizers, no weights.

    Raises KvqError where prompts cannot be read, or a model or lane cannot run here.
    """
    prompts, broken = spec.prompts.read()
    _check(spec.comparison, prompts)
    names = spec.models or (available_models()[0].id,)
    cells: list[Cell] = []
    left: list[LeftOut] = []
    titles = dict[str, str]()  # by id: rows know models by these
    named_by = dict[str, str]()
    for at, name in enumerate(names):
        model = outline(name, spec.comparison.revision)
        if (other := named_by.setdefault(model.id, name)) != name:
            raise SpecError(f"models: {excerpt(other)} and {excerpt(name)} are one model, {model.id}; give it once.")
        taken = any(title == model.title for id, title in titles.items() if id != model.id)
        titles[model.id] = f"{model.title} ({model.id})" if taken else model.title
        source = spec.prompts
        if source.suite is not None and (why := left_out(model.id, source.suite, source.options)):
            left += [LeftOut(model.id, prompt.id, why) for prompt in prompts]
            continue
        for number, found in enumerate(_cells(model, titles[model.id], name, spec.comparison, prompts), 1):
            (cells if isinstance(found, Cell) else left).append(found)  # type: ignore[arg-type]
            if number % 100 == 0:
                progress(Progress("Planning", at * len(prompts) + number, len(names) * len(prompts)))
    if not cells:
        raise SpecError(f"None of the prompts can be run. The first: {left[0].why}")
    return CellPlan(spec, prompts, tuple(cells), tuple(left), broken)


def _check(shared: ComparisonSpec, prompts: Sequence[StudyPrompt]) -> None:
    """Before anything is computed. Raises SpecError for a prompt that cannot be asked as the study asks, or whose
    answer its verifier cannot judge by."""
    for prompt in prompts:
        if prompt.verifier is not None:
            try:
                check_answer(prompt.verifier, prompt.answer)
            except SpecError as error:
                raise SpecError(f"prompt {excerpt(prompt.id)}: {error}") from None
        if prompt.messages or prompt.tools:
            if not shared.chat:
                raise SpecError("chat = false and messages are both given; leave chat out, or give prompts.")
            if prompt.messages and shared.system:
                raise SpecError(
                    f"system is given beside prompt {excerpt(prompt.id)}, whose messages stand in its place; put it "
                    "into a message."
                )


def _cells(
    model: LoadedModel, title: str, name: str, shared: ComparisonSpec, prompts: Sequence[StudyPrompt]
) -> Iterator[Cell | LeftOut]:
    shared = portable_spec(model, shared.model_copy(update={"model": name}))
    known = shared.model
    check_places(model, shared)
    check_reference(model, shared)
    place, changed = place_of(model, shared.lanes, shared.reference), shared.changed()
    same = {field: value for field, value in changed.items() if field not in _BY_PROMPT}
    read = script if any(rule.spans for lane in shared.lanes for rule in lane.every_rule) else read_prompt
    specs = [comparison_of(shared, prompt) for prompt in prompts]
    rendered = iter(model.render_each([(s.prompt, s.system) for s in specs if s.messages is None], shared.chat))
    for prompt, spec in zip(prompts, specs, strict=True):
        demand_wanted()
        own = spec.model_dump(mode="json", exclude_defaults=True, include=_BY_PROMPT)
        try:
            given = None if spec.messages is not None else next(rendered)
            if isinstance(given, SpecError):
                raise given
            ids = read(model, spec, given).ids
        except SpecError as error:
            yield LeftOut(known, prompt.id, str(error))
            continue
        id = id_of(canonical_json({**same, **own, "model": known}), ids, place)
        yield Cell(id, known, title, prompt, spec, len(ids))


def comparison_of(shared: ComparisonSpec, prompt: StudyPrompt) -> ComparisonSpec:
    """Of what all cells of a model share, the comparison of one prompt."""
    system = shared.system if prompt.system is None and prompt.messages is None else prompt.system
    text, messages = prompt.prompt, prompt.messages
    if prompt.tools and messages is None:  # they are told in a conversation
        said = (Message(role="system", content=system),) if system else ()
        text, system, messages = "", None, (*said, Message(role="user", content=text))
    changes = {
        "prompt": text,
        "system": system,
        "messages": messages,
        "tools": prompt.tools,
        "last": prompt.last,
        "continuation": prompt.continuation,
        "free_text": shared.free_text or prompt.verifier is not None,
    }
    return shared.model_copy(update=changes)
