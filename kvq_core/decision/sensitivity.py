"""What each layer costs alone: one layer's keys, or values, in a format and all else fp16, many lanes on a prefill."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvq_core.decision.layer_plans import Candidate
from kvq_core.decision.scores import VERSION, Sensitivity, id_of, keep, key, read_scores
from kvq_core.errors import KvqError, MethodError, SpecError
from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import end_of
from kvq_core.record.fields import Record
from kvq_core.spec import MAX_LANES, Capture, ComparisonSpec, Lane, Tensor
from kvq_core.studies.prompts import StudyPrompt

POSITIONS = 32  # scored of every prompt
FIELDS = ("prompt", "messages", "system", "tools")  # of a prompt that a comparison has, too


@dataclass(frozen=True)
class ScoringProgress:
    """A part is done: so many comparisons of all."""

    done: int
    total: int


def score_layers(
    model: LoadedModel, prompts: Sequence[StudyPrompt], candidates: Sequence[Candidate], at_once: int = MAX_LANES
) -> Iterator[ScoringProgress | Sensitivity]:
    """Score every layer for every candidate on every prompt; what has been scored is kept, and not scored again. The
    scores come last. Closing it stops, and loses one comparison, of ``at_once`` lanes, at most.

    Raises SpecError where a candidate cannot store single layers of the model, KvqError where a prompt cannot be run.
    """
    for each in candidates:
        if reason := each.why_not(model.shape):
            raise SpecError(f"format = {each.name}: {reason}.")
    scores = _begun(model, candidates)
    named = {each.name: each for each in candidates}
    open_ = [(prompt, identity(prompt)) for prompt in prompts]
    total = sum(-(-len(scores.missing(known)) // at_once) for _, known in open_)
    done = 0
    for prompt, known in open_:
        left = scores.missing(known)
        follow = _answer(model, prompt) if left else ""
        while left:
            some = left[:at_once]
            lanes = [_lane(named[name], tensor, layer) for name, tensor, layer in some]
            found = losses(model, prompt, lanes, follow)
            scores = keep(scores.added(known, {key(*each): loss for each, loss in zip(some, found, strict=True)}))
            done, left = done + 1, left[at_once:]
            yield ScoringProgress(done, total)
    yield scores


def losses(model: LoadedModel, prompt: StudyPrompt, lanes: Sequence[Lane], follow: str) -> list[float]:
    """Mean KLD in nats of every lane over the answer ``follow``, read token by token as it would be generated, so that
    its own keys are stored before later ones are read, as in the run that verifies a policy.

    Raises MethodError where a lane fails, KvqError where the prompt cannot be run.
    """
    record = _run(model, _spec(model, prompt, continuation=follow, lanes=tuple(lanes)))
    found = []
    for lane in record.lanes:
        if lane.metrics is None or lane.metrics.kld_mean is None:
            raise MethodError(f"{lane.label}: {lane.error or 'nothing was scored'}")
        found.append(lane.metrics.kld_mean)
    return found


def losses_of_some(model: LoadedModel, prompt: StudyPrompt, lanes: Sequence[Lane], follow: str) -> dict[str, float]:
    """``losses`` by label, of the lanes that can be had there; others are left out."""
    record = _run(model, _spec(model, prompt, continuation=follow, lanes=tuple(lanes)))
    found = {lane.label: lane.metrics.kld_mean for lane in record.lanes if lane.metrics is not None}
    return {label: loss for label, loss in found.items() if loss is not None}


def identity(prompt: StudyPrompt) -> str:
    """Of what is asked and followed, whatever its name."""
    told = prompt.model_dump_json(include={*FIELDS, "continuation"})
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def answer_of(model: LoadedModel, prompt: StudyPrompt) -> str:
    """What is followed: the prompt's own continuation, else what the model answers."""
    return _answer(model, prompt)


def _answer(model: LoadedModel, prompt: StudyPrompt) -> str:
    """POSITIONS tokens and the first, which the prefill gives."""
    if prompt.continuation is not None:
        ids = model.encode(prompt.continuation)[: POSITIONS + 1]
        return model.tokenizer.decode(ids)
    return _run(model, _spec(model, prompt, max_new_tokens=POSITIONS + 1, ignore_eos=True)).reference.text


def _spec(model: LoadedModel, prompt: StudyPrompt, **more: object) -> ComparisonSpec:
    """A prompt is put into the chat template where the model has one."""
    given = {name: value for name in FIELDS if (value := getattr(prompt, name)) not in (None, "", ())}
    if prompt.messages is None:
        given["chat"] = bool(getattr(model.tokenizer, "chat_template", None))
    return ComparisonSpec.model_validate(
        {"model": model.id, **given, "free_text": False, "capture": Capture(detail="off"), **more}
    )


def _run(model: LoadedModel, spec: ComparisonSpec) -> Record:
    return end_of(compare_on(model, spec)).record


def _begun(model: LoadedModel, candidates: Sequence[Candidate]) -> Sensitivity:
    names = tuple(sorted(each.name for each in candidates))
    if len(set(names)) < len(names) or not names:
        raise SpecError("format is given twice, or not at all; give each candidate once.")
    id = id_of(model.model_hash, names, POSITIONS)
    begun = Sensitivity(
        id=id, version=VERSION, model=model.id, layers=model.shape.layers, positions=POSITIONS, formats=names
    )
    return read_scores(id) or begun


def _lane(candidate: Candidate, tensor: Tensor, layer: int) -> Lane:
    label = key(candidate.method.short(), tensor, layer)[-60:]
    return Lane.model_validate({**candidate.data, "label": label, "tensors": tensor, "layers": (layer,)})


def check_model(model: LoadedModel, scores: Sensitivity) -> None:
    """Raises KvqError where scores are of another model than the loaded one, or of another version of results."""
    if id_of(model.model_hash, scores.formats, scores.positions) != scores.id:
        raise KvqError(
            f"Scores {scores.id} are of other weights than those of {model.title} now, or of another version of "
            "results; score them again."
        )
