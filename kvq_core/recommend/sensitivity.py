"""What each layer costs alone: one layer's keys, or values, in a format and all else fp16, many lanes on a prefill;
kept on disk apart from any budget, and more prompts add to it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from kvq_core.errors import KvqError, MethodError, SpecError, excerpt
from kvq_core.machine.files import alone, keep_memo, read_memo
from kvq_core.machine.progress import Progress
from kvq_core.methods import ModelShape, make
from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare_on
from kvq_core.recommend.layer_plans import FP16, Candidate
from kvq_core.recommend.solver import Costs
from kvq_core.record.events import end_of
from kvq_core.record.fields import RESULTS_VERSION, Record
from kvq_core.settings import settings
from kvq_core.spec import MAX_LANES, TENSORS, Capture, ComparisonSpec, Lane, Tensor
from kvq_core.spec.part import SpecPart
from kvq_core.studies.intervals import mean_interval
from kvq_core.studies.prompts import StudyPrompt

VERSION = 1  # raised whenever what is kept changes its form


class Score(SpecPart):
    """A layer's keys, or values, in a format, all else fp16: mean KLD in nats over prompts, each the mean of its scored
    positions, and the 95 % interval over them; None where there are too few."""

    format: str
    tensor: Tensor
    layer: int
    kld_mean: float
    kld_low: float | None
    kld_high: float | None


class Sensitivity(SpecPart):
    """``klds``: by prompt (the hash of what was asked), then by format, tensor and layer (``key``). ``layers`` counts
    those of the model; a prompt whose run was cut short lacks some keys."""

    id: str
    version: int
    model: str
    layers: int
    positions: int
    formats: tuple[str, ...]
    klds: dict[str, dict[str, float]] = {}

    @property
    def keys(self) -> list[tuple[str, Tensor, int]]:
        """Every format, tensor and layer."""
        return [(name, t, layer) for name in self.formats for t in TENSORS for layer in range(self.layers)]

    def missing(self, prompt: str) -> list[tuple[str, Tensor, int]]:
        """What a prompt has not been scored for."""
        own = self.klds.get(prompt, {})
        return [each for each in self.keys if key(*each) not in own]

    def added(self, prompt: str, found: dict[str, float]) -> "Sensitivity":
        klds = {**self.klds, prompt: {**self.klds.get(prompt, {}), **found}}
        return self.model_copy(update={"klds": klds})

    @property
    def whole(self) -> dict[str, dict[str, float]]:
        """Prompts that have been scored for everything."""
        return {prompt: own for prompt, own in self.klds.items() if not self.missing(prompt)}

    def scores(self) -> list[Score]:
        """Over the prompts that are whole. Raises SpecError where there is none."""
        whole = self.whole
        if not whole:
            raise SpecError(f"Scores {self.id} have no prompt that was scored whole; run layers again to go on.")
        return [_score(each, np.array([own[key(*each)] for own in whole.values()])) for each in self.keys]

    def costs(self, shape: ModelShape) -> Costs:
        """What the solver takes."""
        candidates = [Candidate.parse(name) for name in self.formats]
        means = {(s.format, s.tensor, s.layer): s.kld_mean for s in self.scores()}
        plain = Candidate(FP16, make(FP16))
        loss, nbytes = [], []
        for tensor in TENSORS:
            sizes = [each.layer_bytes(tensor, shape) for each in candidates]
            own = [[means[name, tensor, layer] for name in self.formats] for layer in range(self.layers)]
            loss.append([[*row, 0.0] for row in own])
            nbytes.append([[*sizes, plain.layer_bytes(tensor, shape)]] * self.layers)
        return Costs((*self.formats, FP16), np.array(loss), np.array(nbytes))


def _score(of: tuple[str, Tensor, int], klds: np.ndarray) -> Score:
    name, tensor, layer = of
    found = mean_interval(klds)
    return Score(format=name, tensor=tensor, layer=layer, kld_mean=found.value, kld_low=found.low, kld_high=found.high)


def key(format: str, tensor: Tensor, layer: int) -> str:
    return f"{format} {tensor} {layer}"


def scores_id(model_hash: str, formats: Sequence[str], positions: int) -> str:
    """Of the scores of a model for formats, as results are now: whatever the prompts and the budget, so that more
    prompts add to them."""
    told = json.dumps([VERSION, RESULTS_VERSION, model_hash, sorted(formats), positions])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def file_of(id: str) -> Path:
    return settings().home / "layers" / f"{id}.json"


def read_scores(id: str) -> Sensitivity | None:
    """Kept scores; None where there are none of this version."""
    held = read_memo(file_of(id))
    try:
        found = Sensitivity.model_validate(held) if held is not None else None
    except ValidationError:
        return None
    return found if found is not None and found.version == VERSION else None


def load_scores(id: str) -> Sensitivity:
    """Raises SpecError where none of that id are kept here."""
    found = read_scores(id) if id.isalnum() else None
    if found is None:
        raise SpecError(f"Scores {excerpt(id)} are not kept here; python -m kvq_core layers --model M measures some.")
    return found


def keep_scores(scores: Sensitivity) -> Sensitivity:
    """Keep scores together with what other processes have kept of them meanwhile, and return both."""
    with suppress(OSError), alone(file_of(scores.id)):  # where nothing can be kept, nothing is lost
        held = read_scores(scores.id)
        for prompt, own in ({} if held is None else held.klds).items():
            scores = scores.added(prompt, own | scores.klds.get(prompt, {}))
        keep_memo(file_of(scores.id), scores.model_dump(mode="json"))
    return scores


POSITIONS = 32  # scored of every prompt
FIELDS = ("prompt", "messages", "system", "tools")  # of a prompt that a comparison has, too


def score_layers(
    model: LoadedModel, prompts: Sequence[StudyPrompt], candidates: Sequence[Candidate], at_once: int = MAX_LANES
) -> Iterator[Progress | Sensitivity]:
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
            found = lane_losses(model, prompt, lanes, follow)
            scores = keep_scores(
                scores.added(known, {key(*each): loss for each, loss in zip(some, found, strict=True)})
            )
            done, left = done + 1, left[at_once:]
            yield Progress("Scoring layers", done, total, "passes")
    yield scores


def lane_losses(model: LoadedModel, prompt: StudyPrompt, lanes: Sequence[Lane], follow: str) -> list[float]:
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
    """``lane_losses`` by label, of the lanes that can be had there; others are left out."""
    record = _run(model, _spec(model, prompt, continuation=follow, lanes=tuple(lanes)))
    found = {lane.label: lane.metrics.kld_mean for lane in record.lanes if lane.metrics is not None}
    return {label: loss for label, loss in found.items() if loss is not None}


def identity(prompt: StudyPrompt) -> str:
    """Of what is asked and followed, whatever its name."""
    told = prompt.model_dump_json(include={*FIELDS, "continuation"})
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def followed_answer(model: LoadedModel, prompt: StudyPrompt) -> str:
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
    id = scores_id(model.model_hash, names, POSITIONS)
    begun = Sensitivity(
        id=id, version=VERSION, model=model.id, layers=model.shape.layers, positions=POSITIONS, formats=names
    )
    return read_scores(id) or begun


def _lane(candidate: Candidate, tensor: Tensor, layer: int) -> Lane:
    label = key(candidate.method.short(), tensor, layer)[-60:]
    return Lane.model_validate({**candidate.data, "label": label, "tensors": tensor, "layers": (layer,)})


def check_scores_model(model: LoadedModel, scores: Sensitivity) -> None:
    """Raises KvqError where scores are of another model than the loaded one, or of another version of results."""
    if scores_id(model.model_hash, scores.formats, scores.positions) != scores.id:
        raise KvqError(
            f"Scores {scores.id} are of other weights than those of {model.title} now, or of another version of "
            "results; score them again."
        )
