"""Training what lanes lack: offered with its cost, started when asked for, told as it goes, stopped at any time."""

import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from kvq_core.codebooks.files import DEFAULT_NAME, CodebookInfo, Kind, codebooks
from kvq_core.codebooks.lookup import CodebookNeed
from kvq_core.errors import KvqError
from kvq_core.machine.progress import Progress, yielding
from kvq_core.methods import ModelRef, ModelShape
from kvq_core.models import LoadedModel, load, with_model
from kvq_core.settings import settings
from kvq_core.spec import ComparisonSpec, Lane
from kvq_core.training.ranges import WIDTHS
from kvq_core.training.train import LEFT_OUT, Request, train_all
from kvq_core.training.values import ValuePlan

Budget = Literal["full", "quick"]
BUDGETS: dict[Budget, tuple[int, int]] = {"full": (12288, 2048), "quick": (4096, 1024)}  # tokens: trained, held out
TELL_S = 0.3  # between two events; what stops a training is noticed as often
WINDOW_S = 20.0  # what the remaining time is extrapolated from
READING = 3e10  # multiplications and additions a second while the model reads the text: two slow CPU cores


@dataclass(frozen=True)
class Offer:
    """What ``lanes`` of a model lack, as trainings, and what those take; making an offer trains nothing.

    ``seconds`` and ``parts``, those of reading and of each training, are scaled from codebooks trained before (on this
    machine, else the shipped ones). ``refusal`` says why this instance does not train.
    """

    model: str
    revision: str | None
    model_title: str
    lanes: tuple[str, ...]
    requests: tuple[Request, ...]
    bytes: int
    parts: tuple[float, ...]
    refusal: str | None

    @property
    def seconds(self) -> float:
        return sum(self.parts)

    @property
    def commands(self) -> list[str]:
        """The same from a terminal."""
        return [request.command(self.model) for request in self.requests]


@dataclass(frozen=True)
class TrainingResult:
    """The end: descriptions of the codebooks that are there now."""

    codebooks: tuple[CodebookInfo, ...]


def offer(model: str, revision: str | None, lanes: Iterable[Lane], budget: Budget = "full") -> Offer | None:
    """What training the lanes would need on a model before they can run; None where nothing is missing.

    Raises KvqError where the model cannot be loaded.
    """
    loaded = load(model, revision)
    wanted: list[CodebookNeed] = []
    names: list[str] = []
    for lane in lanes:
        missing = () if lane.why_not(loaded.shape) else lane.lacks(loaded.ref)
        wanted += missing
        names += [lane.label or lane.title] if missing else []
    if not wanted:
        return None
    requests = tuple(_requests(wanted, loaded.shape.head_dim, *BUDGETS[budget]))
    parts = (_reading_seconds(loaded, requests[0]), *(_seconds(r, loaded.shape) for r in requests))
    size = sum(_bytes(r, loaded.shape) for r in requests)
    unique = tuple(dict.fromkeys(names))
    return Offer(*loaded.again(model, revision), loaded.title, unique, requests, size, parts, _refusal())


def possible_here(spec: ComparisonSpec) -> bool:
    """Whether nothing that a comparison's lanes learn beforehand is out of reach: it is there, or this instance trains
    it. Loads nothing; a spec that names no model is meant for the one that is offered first."""
    model = ModelRef(with_model(spec).model, "")  # no hash: what was learned from a model of that id counts
    return _refusal() is None or not any(lane.lacks(model) for lane in spec.lanes)


def train_missing(found: Offer) -> Generator[Progress | TrainingResult]:
    """Train what was offered; the last event is Trained. Closing the generator stops within a step of the training and
    keeps what is finished: the next time goes on from there.

    Raises KvqError where this instance does not train, or the training is not possible.
    """
    if found.refusal:
        raise KvqError(found.refusal)
    model, whole = load(found.model, found.revision), _Whole(found.parts)
    last = Progress("Starting", share=0.0)
    with closing(yielding(lambda report: train_all(model, found.requests, report), "training", TELL_S)) as steps:
        while True:
            try:
                word = next(steps)
            except StopIteration as end:
                yield TrainingResult(tuple(book.info for book in end.value))
                return
            last = last if word is None else whole.after(word)
            yield last


class _Whole:
    """How far all parts together are, and the time they still take at the pace of the last seconds."""

    def __init__(self, parts: tuple[float, ...]):
        self._parts = parts
        self._index, self._doing, self._done, self._share = -1, "", 0, 0.0
        self._past: deque[tuple[float, float]] = deque()  # time, share

    def after(self, at: Progress) -> Progress:
        if at.doing != self._doing or at.done < self._done:
            self._index = min(self._index + 1, len(self._parts) - 1)
        self._doing, self._done = at.doing, at.done
        share = sum(self._parts[: self._index]) + self._parts[self._index] * at.part
        self._share = share = max(self._share, min(1.0, share / sum(self._parts)))
        now = time.monotonic()
        self._past.append((now, share))
        while now - self._past[0][0] > WINDOW_S:
            self._past.popleft()
        elapsed, gained = now - self._past[0][0], share - self._past[0][1]
        return replace(at, share=share, left=elapsed / gained * (1 - share) if gained > 0.01 else None)


def _requests(wanted: list[CodebookNeed], head_dim: int, train: int, held_out: int) -> list[Request]:
    """One training for each set of codebooks that can serve: of keys, the longest serves shorter ones as well."""
    chosen: dict[tuple[object, ...], CodebookNeed] = {}
    for each in wanted:
        size = (
            (each.levels, each.pairs or head_dim // 2)
            if each.kind == "keys"
            else (each.bits, each.target, each.outlier_fraction)
        )
        place = (each.kind, each.name, *size)
        known = chosen.get(place)
        if known is None or known.stages_of(head_dim) < each.stages_of(head_dim):
            chosen[place] = each
    return [
        Request(
            bits=w.bits,
            kinds=(w.kind,),
            levels=w.levels,
            pairs=w.pairs,
            stages=w.stages,
            target=w.target or "qqt",
            outlier_fraction=LEFT_OUT if w.outlier_fraction is None else w.outlier_fraction,
            name=w.name or DEFAULT_NAME,
            train_tokens=train,
            held_out_tokens=held_out,
        )
        for w in chosen.values()
    ]


def _refusal() -> str | None:
    if not settings().public:
        return None
    return (
        "This instance serves everyone and does not train: nobody could run anything meanwhile. Remove the lane to "
        "run the others here; on a machine of your own the app offers the training, or run the command below."
    )


def _bytes(request: Request, shape: ModelShape) -> int:
    """Bytes of the file: float16 levels of keys; int8 encoder and float16 codebook of values; float32 rotations;
    float16 ranges, beside which levels are few."""
    channels = shape.kv_heads * shape.head_dim
    if request.kinds == ("rotations",):
        return 8 * shape.layers * shape.head_dim * (shape.head_dim + 1)
    if request.kinds == ("ranges",):
        return 4 * shape.layers * (channels + sum(1 << bits for bits in WIDTHS))
    if request.kinds == ("keys",):
        return 2 * shape.layers * channels * request.levels * request.stages_on(shape.head_dim)
    return shape.layers * channels**2 * (1 + 4 * request.bits)


def _seconds(request: Request, shape: ModelShape) -> float:
    """What the training takes at the pace of the largest one known: of the user's own, else of the shipped ones."""
    (kind,) = request.kinds
    known = [book for book in codebooks() if book.info.kind == kind]
    done = [book for book in known if not book.shipped] or known
    most, seconds = max((_work_of(book.info), book.info.seconds) for book in done)
    stages = request.stages_on(shape.head_dim)
    pairs = request.pairs or shape.head_dim // 2
    tokens, steps = request.train_tokens, request.value_steps
    return seconds / most * _work(kind, shape, request.bits, request.levels, pairs, stages, tokens, steps)


def _work_of(info: CodebookInfo) -> float:
    shape = ModelShape(info.layers, info.kv_heads, info.kv_heads, info.head_dim, 0)
    steps = int(info.settings.get("steps", 0))
    keys = (info.levels or 0, info.pairs_per_group or 1, info.stages or 0)
    return _work(info.kind, shape, int(info.bits), *keys, info.train_tokens, steps)


def _work(
    kind: Kind, shape: ModelShape, bits: int, levels: int, pairs: int, stages: int, tokens: int, steps: int
) -> float:
    """What the time of a training is proportional to, nearly: keys compare every token with levels^2 centres (and 100
    more is what all else costs), values multiply by matrices of channels^2; what is calibrated is a matter of reading.
    """
    if kind in ("rotations", "ranges"):
        return float(shape.layers * tokens * shape.head_dim**2 * (shape.query_heads + shape.kv_heads))
    if kind == "keys":
        groups = shape.kv_heads * (shape.head_dim // 2 // pairs)
        return float(shape.layers * groups * stages * tokens * (levels**2 + 100))
    channels = shape.kv_heads * shape.head_dim
    return float(shape.layers * steps * bits * ValuePlan.batch * channels**2 * (1 + 3 * bits))


def _reading_seconds(model: LoadedModel, request: Request) -> float:
    return 2 * sum(p.numel() for p in model.model.parameters()) * sum(request.reads) / READING
