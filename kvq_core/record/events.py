"""What a running comparison reports, in the order it happens."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from kvq_core.machine.progress import Progress, converting, downloading
from kvq_core.record.fields import Record


@dataclass(frozen=True)
class Loading:
    """``total`` 0: it is being loaded. Else it is on its way: bytes are downloaded, or weights of a GGUF file
    converted."""

    model: str
    done: int = 0
    total: int = 0
    doing: Literal["converting", "downloading"] = "converting"

    @classmethod
    def of(cls, model: str, step: Progress) -> "Loading":
        """A step of ``models.prepare``."""
        return cls(model, step.done, step.total, "downloading" if step.unit == "bytes" else "converting")


@dataclass(frozen=True)
class Prefill:
    done: int  # prompt tokens
    total: int


@dataclass(frozen=True)
class Encoding:
    label: str
    index: int
    total: int  # lanes, the noise floor included


@dataclass(frozen=True)
class Filling:
    """Lanes that read the prompt through their own caches: ``done`` of its ``total`` tokens have entered."""

    labels: list[str]
    done: int
    total: int


@dataclass(frozen=True)
class LaneProgress:
    """A lane in mid-run. ``kld[i]`` and ``same_top[i]`` belong to scored position i, that is generated token i + 1."""

    label: str
    tokens: list[str]  # pieces of the lane's own (free) text so far
    kld: list[float]
    same_top: list[bool]
    first_divergence: int | None
    error: str | None = None
    finish: str | None = None  # as in the record, once the lane is done


@dataclass(frozen=True)
class Step:
    """After every decode step (every scored chunk of a continuation)."""

    done: int  # tokens generated or scored, over all batches of lanes
    total: int
    tokens: list[str]  # pieces of the reference text so far
    lanes: list[LaneProgress]  # as in the spec, the noise floor left out
    batch: range | None = None  # of the lanes, those that decode now; None: all


@dataclass(frozen=True)
class Replaying:
    """Lanes of a finished run are led along its answer again, as far up the model as one ``layer``."""

    done: int  # tokens
    total: int
    layer: int


@dataclass(frozen=True)
class Summarizing:
    """Decoding is over; captures and metrics are being computed."""


@dataclass(frozen=True)
class Finished:
    record: Record
    arrays: dict[str, Tensor] = field(repr=False)
    reused: bool = False  # the store already held this run; nothing was computed
    unkept: str = ""  # why the store could not keep it


Event = Loading | Prefill | Encoding | Filling | Step | Replaying | Summarizing | Finished


def end_of(events: Iterable[Event]) -> Finished:
    """The event that every run ends with."""
    for event in events:
        if isinstance(event, Finished):
            return event
    raise AssertionError("a run ends with Finished")


STAGES = ("Prefill", "Encode", "Decode", "Measure")


def progress(event: Event) -> Progress:
    """An event as bars and status lines show it, with the stage of STAGES it is of, none before the first."""
    match event:
        case Loading(total=0):
            return Progress("Loading the model")
        case Loading(done=done, total=total, doing=way):
            return downloading(done, total) if way == "downloading" else converting(done, total)
        case Prefill(done=done, total=total):
            return Progress("Prefill", done, total, "prompt tokens", STAGES[0])
        case Encoding(label=label, index=index, total=total):
            return Progress(f"Encoding the cache of {label}", index, total, stage=STAGES[1])
        case Filling(labels=labels, done=done, total=total):
            doing = f"Reading the prompt through the cache of {' and '.join(labels)}"
            return Progress(doing, done, total, "tokens", STAGES[1])
        case Step(done=done, total=total, batch=batch):
            which = f", lanes {batch.start + 1} to {batch.stop} of {len(event.lanes)}" if batch else ""
            return Progress(f"Decoding{which}", done, total, "tokens", STAGES[2])
        case Replaying(done=done, total=total, layer=layer):
            return Progress(f"Following the answer up to layer {layer}", done, total, "tokens", STAGES[2])
        case Summarizing():
            return Progress("Measuring: spectra, errors and scores", stage=STAGES[3])
    return Progress("Done", 1, 1, stage=STAGES[3])
