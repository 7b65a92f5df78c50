"""Training of a model's codebooks, from text to files."""

import hashlib
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from kvq_core.codebooks.files import (
    DEFAULT_NAME,
    FORMAT,
    Codebook,
    CodebookInfo,
    Kind,
    Target,
    codebook_folder,
    codebooks,
    save_codebook,
)
from kvq_core.codebooks.lookup import stages_for
from kvq_core.errors import SpecError
from kvq_core.machine.progress import Report
from kvq_core.methods.formats.oscar import Oscar
from kvq_core.models import LoadedModel
from kvq_core.training.checkpoints import checkpoints
from kvq_core.training.collect import Samples, attended_samples, collect, weighed_samples
from kvq_core.training.em import EmSettings
from kvq_core.training.keys import KeyPlan, stage_name, train_keys
from kvq_core.training.ranges import TOLD, fit_ranges
from kvq_core.training.rotations import fit_rotations
from kvq_core.training.texts import Sequences, Texts, read_texts, sequences
from kvq_core.training.values import ValuePlan, train_values

LEFT_OUT = 0.01  # of the elements by ranges, as the paper has it
FEWEST_TRAIN, FEWEST_HELD_OUT = 4096, 1024
_OPTIONS = (
    "levels",
    "pairs",
    "stages",
    "target",
    "outlier_fraction",
    "text",
    "name",
    "train_tokens",
    "held_out_tokens",
    "seed",
    "value_steps",
)


@dataclass(frozen=True)
class Request:
    """What to train. ``pairs`` None: half a head; ``stages`` None: as many as make ``bits`` bits an element. ``target``
    of rotations, whose codes have 2 bits whatever ``bits`` says; ``outlier_fraction`` of ranges, which serve all
    widths."""

    bits: int = 1
    kinds: tuple[Kind, ...] = ("keys", "values")
    levels: int = 16
    pairs: int | None = None
    stages: int | None = None
    target: Target = "qqt"
    outlier_fraction: float = LEFT_OUT
    text: str | None = None
    name: str = DEFAULT_NAME
    train_tokens: int = 12288
    held_out_tokens: int = 2048
    seed: int = 0
    em: EmSettings = field(default_factory=EmSettings)
    value_steps: int = 600

    @property
    def reads(self) -> tuple[int, int]:
        """Tokens to train on and held out."""
        return self.train_tokens, self.held_out_tokens

    def stages_on(self, head_dim: int) -> int:
        """Stages of keys on a model with heads of that size."""
        return self.stages or stages_for(self.bits, self.pairs or head_dim // 2, self.levels)

    def command(self, model: str) -> str:
        """The command line that asks for this."""
        words = ["python -m kvq_core codebooks train", f"--model {model}", f"--bits {self.bits}"]
        default = Request()
        for name in _OPTIONS:
            if getattr(self, name) != getattr(default, name):
                words.append(f"--{name.replace('_', '-')} {shlex.quote(str(getattr(self, name)))}")
        if len(self.kinds) == 1:
            words.append(f"--only {self.kinds[0]}")
        return " ".join(words)


def train(model: LoadedModel, request: Request, report: Report, texts: Texts | None = None) -> list[Codebook]:
    """Train and save what ``request`` asks for; interrupted, it goes on where it was when called again. ``texts`` are
    those of the request where they have been read already.

    Raises SpecError for too few tokens or a head that the groups do not tile, KvqError where the text cannot be read.
    """
    return train_all(model, [request], report, texts)


def train_all(
    model: LoadedModel, requests: Sequence[Request], report: Report, texts: Texts | None = None
) -> list[Codebook]:
    """``train`` for requests of the same text, tokens and seed, which the model reads once."""
    for request in requests:
        _check(model, request, _pairs(model, request))
    first = requests[0]
    texts = texts or read_texts(first.text)
    cut = sequences(model, texts, *first.reads, first.seed)
    asked: list[tuple[Request, CodebookInfo]] = []
    for request in requests:
        assert (request.text, request.reads, request.seed) == (first.text, first.reads, first.seed)
        asked += [(request, _draft(model, request, _pairs(model, request), kind, texts, cut)) for kind in request.kinds]
    read: tuple[Samples, Samples] | None = None
    made = []
    for request, draft in asked:
        there = _there(draft)  # asked in turn: what was trained just now may serve the next request as well
        if there is None and draft.kind in ("rotations", "ranges"):
            calibrate = _rotations if draft.kind == "rotations" else _ranges
            there = calibrate(model, draft, request, cut, report)
        if there is None:
            read = read or _read(model, cut, report)
            there = (_keys if draft.kind == "keys" else _values)(draft, request, *read, report)
        made.append(there)
    return made


def _pairs(model: LoadedModel, request: Request) -> int:
    return request.pairs or model.shape.head_dim // 2


def _read(model: LoadedModel, cut: Sequences, report: Report) -> tuple[Samples, Samples]:
    """Samples to train on and samples held out; one progress for both."""
    first, second = (sum(map(len, part)) for part in (cut.train, cut.held_out))
    whole = first + second
    kept = collect(model, cut.train, lambda now: report(replace(now, total=whole)))
    return kept, collect(model, cut.held_out, lambda now: report(replace(now, done=first + now.done, total=whole)))


def _rotations(model: LoadedModel, draft: CodebookInfo, request: Request, cut: Sequences, report: Report) -> Codebook:
    began = time.perf_counter()
    kept, held_out = (attended_samples(model, part, report) for part in (cut.train, cut.held_out))
    tensors = fit_rotations(kept, held_out, request.target)
    seconds = torch.tensor([time.perf_counter() - began])  # most of it is reading
    return _finish(draft, {**tensors, "seconds": seconds})


def _ranges(model: LoadedModel, draft: CodebookInfo, request: Request, cut: Sequences, report: Report) -> Codebook:
    began = time.thread_time()  # which what else the machine does is no part of
    kept, held_out = weighed_samples(model, cut.train, report), collect(model, cut.held_out, report)
    tensors = fit_ranges(kept, held_out, request.outlier_fraction)
    return _finish(draft, {**tensors, "seconds": torch.tensor([time.thread_time() - began])})


def _check(model: LoadedModel, request: Request, pairs: int) -> None:
    if "rotations" in request.kinds and (reason := Oscar().why_not(model.shape)):
        raise SpecError(f"Rotations cannot be calibrated for {model.id}: {reason}.")
    if not 0 <= request.outlier_fraction <= 0.5:
        raise SpecError(f"outlier_fraction = {request.outlier_fraction:g} is not allowed; give a number from 0 to 0.5.")
    if "ranges" in request.kinds and model.shape.unknown_rope:
        raise SpecError(
            f"Ranges of keys before RoPE cannot be calibrated for {model.id}: how it rotates them is not known."
        )
    if model.shape.head_dim % (2 * pairs):
        raise SpecError(
            f"pairs = {pairs} does not divide the {model.shape.head_dim // 2} channel pairs of a head of {model.id}."
        )
    if request.levels not in (4, 8, 16, 32, 64):
        raise SpecError(f"levels = {request.levels} is not allowed; allowed: 4, 8, 16, 32, 64.")
    if request.train_tokens < FEWEST_TRAIN or request.held_out_tokens < FEWEST_HELD_OUT:
        raise SpecError(
            f"{request.train_tokens} training and {request.held_out_tokens} held-out tokens are too few; give at least "
            f"{FEWEST_TRAIN} and {FEWEST_HELD_OUT}."
        )


def _draft(model: LoadedModel, request: Request, pairs: int, kind: Kind, texts: Texts, cut: Sequences) -> CodebookInfo:
    """All of a codebook's description but its results."""
    keys = kind == "keys"
    stages = request.stages_on(model.shape.head_dim)
    bits = {
        "keys": stages * (request.levels.bit_length() - 1) / pairs,
        "values": request.bits,
        "rotations": 2,
        "ranges": TOLD,
    }[kind]
    settings, size = _settings(request, kind), [request.levels, pairs] if keys else [bits]
    return CodebookInfo(
        kind=kind,
        name=request.name,
        model=model.id,
        weights_hash=model.weights_hash,
        layers=model.shape.layers,
        kv_heads=model.shape.kv_heads,
        head_dim=model.shape.head_dim,
        settings=settings,
        bits=bits,
        levels=request.levels if keys else None,
        pairs_per_group=pairs if keys else None,
        stages=stages if keys else None,
        digest=_digest(model, request, kind, texts, settings, size),
        source=texts.source,
        train_tokens=sum(map(len, cut.train)),
        held_out_tokens=sum(map(len, cut.held_out)),
        train_error=[],
        held_out_error=[],
        seconds=0.0,
        created="",
        command=request.command(model.id),
    )


def _settings(request: Request, kind: Kind) -> dict[str, Any]:
    """What decides how a kind is trained."""
    own: dict[Kind, dict[str, Any]] = {
        "keys": asdict(request.em),
        "values": {"steps": request.value_steps},
        "rotations": {"target": request.target},
        "ranges": {"outlier_fraction": request.outlier_fraction},
    }
    return {"seed": request.seed, **own[kind]}


def _digest(
    model: LoadedModel, request: Request, kind: Kind, texts: Texts, settings: dict[str, Any], size: list[Any]
) -> str:
    """Of what decides a codebook's content."""
    decides = {
        "kind": kind,
        "format": FORMAT,
        "weights": model.weights_hash,
        "text": texts.documents,
        "settings": settings,
        "size": size,
        "tokens": [request.train_tokens, request.held_out_tokens],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def _there(draft: CodebookInfo) -> Codebook | None:
    """A finished codebook that the same training made, of as many stages or more."""
    done = (book for book in codebooks() if book.info.digest == draft.digest and book.info.name == draft.name)
    return next((book for book in done if (book.info.stages or 0) >= (draft.stages or 0)), None)


def _keys(draft: CodebookInfo, request: Request, train: Samples, held_out: Samples, report: Report) -> Codebook:
    assert draft.levels and draft.pairs_per_group and draft.stages
    plan = KeyPlan(draft.levels, draft.pairs_per_group, draft.stages, request.em, request.seed)
    with checkpoints(codebook_folder() / f"{draft.file_name}.{draft.digest}.partial", _known(draft)) as pieces:
        return _finish(draft, train_keys(train, held_out, plan, pieces, report))


def _values(draft: CodebookInfo, request: Request, train: Samples, held_out: Samples, report: Report) -> Codebook:
    plan = ValuePlan(request.bits, request.value_steps, request.seed)
    with checkpoints(codebook_folder() / f"{draft.file_name}.{draft.digest}.partial") as pieces:
        return _finish(draft, train_values(train, held_out, plan, pieces, report))


def _known(draft: CodebookInfo) -> dict[str, dict[str, Tensor]]:
    """Stages of a finished codebook trained with the same settings, by checkpoint name."""
    known: dict[str, dict[str, Tensor]] = {}
    for book in codebooks():
        if book.info.digest != draft.digest:
            continue
        theta = book.tensors()["theta"]  # (layers, kv_heads, groups, stages, levels, P, 2)
        layers, stages = theta.shape[0], theta.shape[3]
        seconds = torch.tensor(book.info.stage_seconds or [book.info.seconds / stages] * stages) / layers
        for layer in range(layers):
            for stage in range(stages):
                piece = {"theta": theta[layer, :, :, stage].flatten(0, 1), "seconds": seconds[stage]}
                known[stage_name(layer, stage)] = piece
    return known


def _finish(draft: CodebookInfo, tensors: dict[str, Tensor]) -> Codebook:
    """Save a codebook; its description gets the errors, averaged over layers, and the time of every piece of it."""
    means = {name: tensors[name].double().mean(0).reshape(-1).tolist() for name in ("train_error", "held_out_error")}
    # (layers, stages), or (layers,) of values, or one number of rotations; no part of the content
    seconds = tensors.pop("seconds").double()
    info = draft.model_copy(
        update={
            **{name: [round(error, 6) for error in errors] for name, errors in means.items()},
            "seconds": round(seconds.sum().item(), 1),
            "stage_seconds": [round(s, 1) for s in seconds.sum(0).tolist()] if draft.stages else [],
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )
    return save_codebook(info, tensors)
