"""What the stages of a run take on this machine: fitted on its last runs of the model, corrected while one goes on."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np

from kvq_core.machine import files
from kvq_core.pipeline.footprint import AT_ONCE, batches
from kvq_core.record.events import STAGES, Event, progress
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.settings import settings
from kvq_core.spec import Lane

REMEMBERED = 40  # runs a machine's timing is fitted on
ALIKE = 30.0  # how much more a run of the same methods counts than another
FADES = 0.95  # how much less each run counts than the one after it: what else the machine does changes
FIRST_PACE = 0.1  # of the steps, from which on their pace alone tells what is left of them
LEAST = 0.05  # of a run's time: below that a stage's relative error counts no more
# About how prefill and measuring divide among their features, for where few runs tell: rounded from a fit of forty runs
# of the bundled model on two cores, and a guess for any other, which runs of it outweigh. Of one run alone nnls would
# give all to one feature, and measuring, most of which is done once a run, was told at several times what it takes for
# an answer that is longer.
SHAPES = {0: (0.25, 5.0), 3: (1.0, 0.005, 2.0, 0.5)}
BELIEF = 0.1  # how much a proportion counts beside a run: as one whose time is known to a tenth


@dataclass(frozen=True)
class TimedWork:
    """What time grows with: prompt and answer in tokens, cached rows (lanes and floors), tokens of the prompt that pass
    ``through`` lanes' own caches, the batches in which lanes go, and their methods."""

    prompt: int
    new: int
    rows: int
    methods: str = ""
    through: int = 0
    batches: int = 1

    def features(self) -> tuple[list[float], ...]:
        """Of prefill, encoding, decoding and measuring: of each batch but the first a reference row more rides."""
        steps, riding = self.new * self.batches, self.new * (self.rows + self.batches - 1)
        prompt, stored = self.prompt / 1e3, self.prompt * self.rows / 1e3
        return [1.0, prompt], [1.0, stored], [1.0, steps, riding, riding * prompt], [1.0, riding, prompt, stored]


@dataclass(frozen=True)
class Stages:
    """Seconds of each stage of a run."""

    prefill: float
    encode: float
    decode: float
    measure: float

    @property
    def total(self) -> float:
        return sum(astuple(self))


@dataclass(frozen=True)
class Cost:
    """Time and memory of a piece of work: ``seconds``, of ``stages`` where it is a run, None where nothing like it was
    timed on this machine; ``bytes`` at the peak."""

    seconds: float | None = None
    bytes: int = 0
    stages: Stages | None = None

    @property
    def time(self) -> str:
        """The seconds in words."""
        if self.seconds is None:
            return "a time that is not known before the first"
        return f"about {timedelta(seconds=round(self.seconds))}"


UNKNOWN_COST = Cost()


def methods_of(lanes: Sequence[Lane | LaneRecord]) -> str:
    """The methods of lanes, of a spec or a record, as one word: runs of the same ones take alike."""
    return " ".join(sorted(rule.method for lane in lanes for rule in lane.every_rule))


def memory_file(model: str, detail: str) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in model) + ("" if detail == "normal" else f".{detail}")
    return settings().home / "timings" / f"{name}.json"


def read_timings(model: str, detail: str) -> list[tuple[TimedWork, Stages]]:
    """Runs of a model that were remembered, the newest last; rows of another version say something else."""
    rows = files.read_memo(memory_file(model, detail)) or []
    return [(TimedWork(p, n, k, methods), Stages(*spent)) for p, n, k, methods, *spent in rows if len(spent) == 4]


def remember(record: Record, seconds: float) -> None:
    """Keep a finished run's timing for later estimates on this machine, if it can be kept; of runs of one batch and
    one floor, all of whose lanes read the prompt in full precision: that is what a memo tells of. ``seconds``: all it
    took, until it was stored."""
    if len(batches(record.lanes, record.environment.lanes_at_once or AT_ONCE)) > 1:
        return
    if (
        not record.timing.steps
        or record.kernel_floor is not None
        or any(lane.metrics is not None and lane.metrics.prompt is not None for lane in record.lanes)
    ):
        return
    model, detail = record.environment.model, record.capture.detail
    file, spent = memory_file(model, detail), record.timing
    stepping = spent.steps * (spent.ms_per_step or 0.0) / 1e3  # decode_s ends when captures have measured the caches
    measured = max(0.0, seconds - spent.prefill_s - spent.encode_s - stepping)
    row = [
        len(record.reference.prompt_token_ids),
        len(record.reference.token_ids),
        len(record.lanes) + 1,
        methods_of(record.lanes),
    ]
    with suppress(OSError), files.alone(file):
        kept = [[w.prompt, w.new, w.rows, w.methods, *astuple(stages)] for w, stages in read_timings(model, detail)]
        kept.append([*row, spent.prefill_s, spent.encode_s, stepping, measured])
        files.keep_memo(file, kept[-REMEMBERED:])


def predict(model: str, detail: str, work: TimedWork) -> Stages | None:
    """None before a machine's first run of the model. Runs of normal captures stand in for those of a level that was
    not seen yet."""
    runs = read_timings(model, detail) or read_timings(model, "normal")
    if not runs:
        return None
    from scipy.optimize import nnls  # a second's import that most commands never need

    ages = np.arange(len(runs))[::-1]
    alike = np.array([ALIKE if other.methods == work.methods else 1.0 for other, _ in runs])
    worth, found, slopes = alike * FADES**ages, [], []
    for at, own in enumerate(work.features()):
        rows = np.array([other.features()[at] for other, _ in runs])
        spent = np.array([astuple(stages)[at] for _, stages in runs])
        # relative errors: a long run's second is worth less than a short one's
        scale = worth / np.maximum(spent, [LEAST * stages.total or 1.0 for _, stages in runs])
        weights, _ = nnls(*_believed(rows * scale[:, None], spent * scale, SHAPES.get(at)))
        found.append(float(np.dot(own, weights)))
        slopes.append(weights)
    found[1] += float(slopes[0][1]) * work.through / 1e3  # read once more, through a lane's cache
    return Stages(*found)


def _believed(rows: np.ndarray, spent: np.ndarray, shape: Sequence[float] | None) -> tuple[np.ndarray, np.ndarray]:
    """Equations for the seconds of features, and where there is a ``shape`` one more each: the share it has of them."""
    if shape is None or not spent.any():
        return rows, spent
    told = rows @ np.asarray(shape)
    each = np.asarray(shape) * (told @ spent) / (told @ told)
    return np.vstack([rows, np.diag(BELIEF / each)]), np.concatenate([spent, np.full(len(each), BELIEF)])


class RemainingTime:
    """Seconds that a run still takes, from its events: what each stage was estimated at, corrected by the pace of what
    has been done. None while nothing is known."""

    def __init__(self, plan: Stages | None, clock: Callable[[], float] = time.monotonic):
        self._plan = astuple(plan) if plan is not None else (0.0,) * 4
        self._known, self._clock = plan is not None, clock
        self._began, self._at = clock(), -1
        self._spent = [0.0] * 4

    def after(self, event: Event) -> float | None:
        """What is left once this has happened."""
        at, now = progress(event), self._clock()
        stage, done = STAGES.index(at.stage) if at.stage else -1, at.part
        if stage != self._at:
            began = now - done * self._plan[max(stage, 0)]  # of steps the first is told of when it is over
            if self._at >= 0:
                self._spent[self._at] = max(0.0, began - self._began)
            self._at, self._began = stage, began
        if stage < 0:
            return sum(self._plan) if self._known else None
        self._spent[stage] = now - self._began
        return self._left(stage, done)

    def _left(self, stage: int, done: float) -> float | None:
        spent, planned = self._spent[stage], self._plan[stage]
        if not self._known:
            return spent * (1 - done) / done if stage == 2 and FIRST_PACE < done < 1 else None
        pace = self._pace(stage, done)
        whole = (1 - done) * planned * pace + spent  # by the pace of all there was at first, by its own in the end
        return (1 - done) * whole + sum(self._plan[stage + 1 :]) * pace

    def _pace(self, stage: int, done: float) -> float:
        """How much longer than planned everything has taken so far; as planned until a tenth is over."""
        planned = sum(self._plan[:stage]) + done * self._plan[stage]
        ratio = sum(self._spent[: stage + 1]) / planned if planned > 0.1 * sum(self._plan) else 1.0
        return min(3.0, max(1 / 3, ratio))
