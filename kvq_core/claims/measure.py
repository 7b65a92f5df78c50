"""Measuring the board: every text once through the model, every claim on its texts, then the verdicts."""

import math
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version

import torch

from kvq_core.claims.board import Board, ClaimResult, Go, TextInfo, Verdict
from kvq_core.claims.criteria import Claim, ClaimSetting, Paper
from kvq_core.claims.measures import Context, Numbers
from kvq_core.claims.sample import Sample, capture
from kvq_core.claims.texts import token_ids
from kvq_core.claims.verdict import claim_verdict, result_of, spreads
from kvq_core.codebooks.files import Codebook, codebooks
from kvq_core.errors import KvqError, MethodError, SpecError
from kvq_core.machine.progress import Progress, Report, unreported
from kvq_core.models import LoadedModel


@dataclass
class _Found:
    """What the texts gave for one claim so far; a reason ends it."""

    claim: Claim
    numbers: dict[str, Numbers] = field(default_factory=dict)
    reason: str = ""

    def judged(self, paper: Paper, setting: ClaimSetting) -> ClaimResult:
        return judge(paper, self.claim, self.numbers, self.reason, setting)


def measure_board(
    model: LoadedModel,
    papers: Sequence[Paper],
    setting: ClaimSetting,
    report: Report = unreported,
    context: Context | None = None,
) -> Board:
    """Measure the papers' claims on a model. What cannot be measured is a verdict with its reason, not an error."""
    began, context = time.perf_counter(), context or Context(model)
    found = {claim.id: _Found(claim) for paper in papers for claim in paper.claims}
    names = _texts(found.values(), setting, context, report)
    infos = []
    for index, name in enumerate(names):
        report(Progress(f"Reading {name}", index, len(names)))
        try:
            sample, info = _sample(model, name, setting)
        except KvqError as error:
            _stop(found.values(), name, setting, str(error))
            continue
        infos.append(info)
        for each in found.values():
            if name in _wanted(each.claim, setting) and not each.reason:
                report(Progress(f"{name}: {each.claim.id}", index, len(names)))
                _measure(each, context, sample)
    report(Progress("Done", len(names), len(names)))
    return Board(
        model=model.id,
        model_title=model.title,
        weights_hash=model.weights_hash,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - began, 1),
        environment=_environment(model),
        rule=setting.rule.sentence,
        prompt_tokens=setting.prompt_tokens,
        later_tokens=setting.later_tokens,
        texts=tuple(infos),
        codebooks=tuple(f"{b.info.file_name} ({b.info.content})" for b in _codebooks(model)),
        trained_on_demand=tuple(b.info.file_name for b in _codebooks(model) if not b.shipped),
        claims=tuple(found[c.id].judged(p, setting) for p in papers for c in p.claims),
    )


def measure_missing(
    model: LoadedModel,
    known: Board,
    papers: Sequence[Paper],
    setting: ClaimSetting,
    report: Report = unreported,
    keep: Callable[[Board], None] = lambda _: None,
) -> Board:
    """``known`` with those of the papers' claims that it has not measured as they are written today. ``keep`` gets the
    board after every measurement, those of the fewest claims first, so that whoever stops it loses one's at most.

    Raises SpecError where ``known`` is of other weights or another setting and the papers are not all it has.
    """
    if not _same_circumstances(known, model, setting):
        if missing := {claim.paper for claim in known.claims} - {paper.title for paper in papers}:
            raise SpecError(
                f"The stored board of {known.model} is of other weights or another setting: measure all of its papers "
                f"again, {', '.join(sorted(missing))} as well."
            )
        return measure_board(model, papers, setting, report)
    board = known
    done: tuple[Board, ...] = ()
    context = Context(model)  # several papers' claims look at one run
    for part in _parts(known, papers):
        done = (*done, measure_board(model, [part], setting, report, context))
        board = _with(known, done, papers)
        keep(board)
    return board


def _parts(known: Board, papers: Sequence[Paper]) -> list[Paper]:
    """Each paper's claims that a board lacks, those of one measurement together, the fewest first."""
    kept = {claim.id: claim for claim in known.claims}
    parts: list[Paper] = []
    for paper in papers:
        by_measure: dict[str, list[Claim]] = {}
        for claim in paper.claims:
            if not _is_known(claim, kept.get(claim.id)):
                by_measure.setdefault(claim.measure, []).append(claim)
        parts += [paper.model_copy(update={"claims": claims}) for claims in by_measure.values()]
    return sorted(parts, key=lambda part: len(part.claims))


def _with(known: Board, found: Sequence[Board], papers: Sequence[Paper]) -> Board:
    """A board with the claims of others beside its own, all of them one later go."""
    last = found[-1]
    go = Go(
        claims=tuple(claim.id for board in found for claim in board.claims),
        created=last.created,
        seconds=round(sum(board.seconds for board in found), 1),
        environment=last.environment,
    )
    update = {
        "claims": _in_order(known, found, papers),
        "texts": tuple({text.name: text for board in (known, *found) for text in board.texts}.values()),
        "codebooks": last.codebooks,
        "trained_on_demand": last.trained_on_demand,
        "goes": (*known.goes, go),
    }
    return known.model_copy(update=update)


def _in_order(known: Board, found: Sequence[Board], papers: Sequence[Paper]) -> tuple[ClaimResult, ...]:
    """The claims of all these boards: of the papers as these have them today, of others as they stood there."""
    every = {claim.id: claim for board in (known, *found) for claim in board.claims}
    by_paper = {claim.paper: [c for c in known.claims if c.paper == claim.paper] for claim in known.claims}
    by_paper |= {paper.title: [] for paper in papers}
    for paper in papers:
        by_paper[paper.title] += [every[claim.id] for claim in paper.claims if claim.id in every]
    return tuple(claim for claims in by_paper.values() for claim in claims)


def _same_circumstances(known: Board, model: LoadedModel, setting: ClaimSetting) -> bool:
    now = (model.weights_hash, setting.rule.sentence, setting.prompt_tokens, setting.later_tokens)
    return (known.weights_hash, known.rule, known.prompt_tokens, known.later_tokens) == now


def _is_known(claim: Claim, result: ClaimResult | None) -> bool:
    asked = (claim.setting, claim.holds_if)
    return result is not None and bool(result.numbers) and (result.setting, result.criterion) == asked


def judge(paper: Paper, claim: Claim, by_text: dict[str, Numbers], reason: str, setting: ClaimSetting) -> ClaimResult:
    """The result of a claim from the numbers of its texts, or from the reason why there are none."""
    numbers = {} if reason else {t: claim.reported(n) for t, n in _with_baseline(claim, by_text).items()}
    word: Verdict = "cannot be tested here"
    if not reason:
        word, reason = claim_verdict(claim.criteria(), list(numbers.values()), setting.rule)
    return result_of(paper, claim, numbers, word, reason, claim.measurement().asked)


def _with_baseline(claim: Claim, by_text: dict[str, Numbers]) -> dict[str, Numbers]:
    base = [by_text[name] for name in claim.baseline_texts]
    means = {f"baseline.{name}": spread.mean for name, spread in spreads(base).items()}
    return {name: {**numbers, **means} for name, numbers in by_text.items() if name not in claim.baseline_texts}


def _texts(found: Iterable[_Found], setting: ClaimSetting, context: Context, report: Report) -> list[str]:
    """Texts some claim needs, in the setting's order; claims that need none are measured here."""
    wanted = set()
    for each in found:
        measure = each.claim.measurement()
        if measure.reads_texts:
            wanted |= set(_wanted(each.claim, setting))
            continue
        report(Progress(each.claim.id))
        try:
            each.numbers = measure.cases(context)
        except KvqError as error:
            each.reason = str(error)
    return [name for name in setting.text if name in wanted]


def _wanted(claim: Claim, setting: ClaimSetting) -> tuple[str, ...]:
    if not claim.measurement().reads_texts:
        return ()
    return (*claim.baseline_texts, *(claim.texts or setting.texts))


def _sample(model: LoadedModel, name: str, setting: ClaimSetting) -> tuple[Sample, TextInfo]:
    if model.shape.context < setting.tokens:
        raise MethodError(f"{model.title} takes {model.shape.context} tokens; the claims' texts have {setting.tokens}.")
    ids, source = token_ids(model, setting.text[name], setting.tokens)
    return capture(model, name, ids, setting.prompt_tokens), TextInfo(name=name, source=source, tokens=len(ids))


def _measure(found: _Found, context: Context, sample: Sample) -> None:
    try:
        numbers = context.numbers(found.claim.measurement(), sample)
        if wrong := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise MethodError(f"{wrong[0]} of {sample.name} is not a finite number.")
        found.numbers[sample.name] = numbers
    except KvqError as error:
        found.reason = str(error)


def _stop(found: Iterable[_Found], text: str, setting: ClaimSetting, reason: str) -> None:
    for each in found:
        if text in _wanted(each.claim, setting) and not each.reason:
            each.reason = reason


def _codebooks(model: LoadedModel) -> list[Codebook]:
    """What CommVQ had to work with."""
    own = (book for book in codebooks() if book.info.weights_hash == model.weights_hash)
    return [book for book in own if book.info.kind in ("keys", "values")]


def _environment(model: LoadedModel) -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "machine": platform.machine(),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
