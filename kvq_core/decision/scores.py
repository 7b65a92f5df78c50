"""What each layer costs alone, kept on disk apart from any budget; more prompts add to it."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from kvq_core.decision.layer_plans import FP16, Candidate
from kvq_core.decision.solver import Costs
from kvq_core.errors import SpecError, excerpt
from kvq_core.machine.files import alone, keep_memo, read_memo
from kvq_core.methods import ModelShape, make
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.settings import settings
from kvq_core.spec import TENSORS, Tensor
from kvq_core.spec.part import SpecPart
from kvq_core.studies.intervals import mean_interval

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


def id_of(model_hash: str, formats: Sequence[str], positions: int) -> str:
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


def keep(scores: Sensitivity) -> Sensitivity:
    """Keep scores together with what other processes have kept of them meanwhile, and return both."""
    with suppress(OSError), alone(file_of(scores.id)):  # where nothing can be kept, nothing is lost
        held = read_scores(scores.id)
        for prompt, own in ({} if held is None else held.klds).items():
            scores = scores.added(prompt, own | scores.klds.get(prompt, {}))
        keep_memo(file_of(scores.id), scores.model_dump(mode="json"))
    return scores
