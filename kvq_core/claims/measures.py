"""What can be measured of a text: a claim's data names one of these and fills in its fields."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

from pydantic import field_validator, model_validator

from kvq_core.claims.lane_errors import METRICS, predictions
from kvq_core.claims.lanes import ClaimLane, ReadBack, read_back
from kvq_core.claims.sample import Sample, capture
from kvq_core.claims.texts import Text, token_ids
from kvq_core.frozen import Frozen
from kvq_core.models import LoadedModel

Numbers = dict[str, float]
KEPT = 4  # decoded caches held at a time; several claims ask for the same lane


@dataclass
class Context:
    """One run over a model: what measurements share."""

    model: LoadedModel
    shared: dict[Any, Any] = field(default_factory=dict)  # of the model, such as codebooks trained for a claim
    _held: "OrderedDict[tuple[str, str], ReadBack]" = field(default_factory=OrderedDict)
    _metrics: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def hold(self, sample: Sample, lane: ClaimLane) -> ReadBack:
        key = (sample.name, lane.model_dump_json())
        if key not in self._held:
            other = None if lane.subspace == "own" else self.other(lane.subspace, sample)
            self._held[key] = read_back(sample, lane, other)
            while len(self._held) > KEPT:
                self._held.popitem(last=False)
        return self._held[key]

    def numbers(self, measure: "Measure", sample: Sample) -> Numbers:
        """A measurement's numbers of a text; several claims may look at one."""
        key = (type(measure), measure.model_dump_json(), sample.name)
        if key not in self.shared:
            self.shared[key] = measure.on_text(self, sample)
        return cast(Numbers, self.shared[key])

    def other(self, text: Text, like: Sample) -> Sample:
        """Another text through the model, as long as ``like``; read once."""
        key = ("other", text, len(like.ids), like.prompt)
        if key not in self.shared:
            ids, source = token_ids(self.model, text, len(like.ids))
            self.shared[key] = capture(self.model, source, ids, like.prompt)
        return cast(Sample, self.shared[key])

    def metric(self, sample: Sample, lane: ClaimLane, name: str) -> float:
        place = (sample.name, lane.model_dump_json())
        if (*place, name) not in self._metrics:
            held = self.hold(sample, lane)
            both = predictions(sample, held) if name in PREDICTED else {name: METRICS[name](sample, held)}
            self._metrics |= {(*place, each): value for each, value in both.items()}
        return self._metrics[(*place, name)]


PREDICTED = ("kld", "ppl_ratio")  # one forward pass gives both


class Measure(Frozen):
    """A measurement and its settings. ``names`` are the numbers it gives, for every text or case the same."""

    reads_texts: ClassVar[bool] = True  # False: ``cases`` stand in their place

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the numbers."""

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        """The numbers of one text. Raises KvqError where the model cannot give them."""
        raise NotImplementedError

    @property
    def asked(self) -> int:
        """Answers that stand behind each share, of all cases together; 0 where numbers are no shares of answers."""
        return 0

    def cases(self, context: Context) -> dict[str, Numbers]:
        """The numbers of each case, by its name. Raises KvqError where the model cannot give them."""
        raise NotImplementedError


class LaneMetrics(Measure):
    """Several lanes, each by several metrics: ``lane.metric``. ``KNOWN`` are the metrics there are."""

    KNOWN: ClassVar[Collection[str]]
    lanes: Mapping[str, Any]
    metrics: tuple[str, ...]

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(metrics) - set(cls.KNOWN):
            raise ValueError(f"unknown metrics {', '.join(sorted(unknown))}; known: {', '.join(cls.KNOWN)}")
        return metrics

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{lane}.{metric}" for metric in self.metrics for lane in self.lanes)


class Lanes(LaneMetrics):
    """Caches of the prompt under several lanes. ``means``: lanes whose mean is a number of its own, ``mean.metric``."""

    KNOWN = METRICS
    lanes: dict[str, ClaimLane]
    means: dict[str, tuple[str, ...]] = {}

    @model_validator(mode="after")
    def _known_lanes(self) -> Self:
        if unknown := {lane for lanes in self.means.values() for lane in lanes} - set(self.lanes):
            raise ValueError(f"means of unknown lanes {', '.join(sorted(unknown))}; known: {', '.join(self.lanes)}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return (*super().names, *(f"{mean}.{metric}" for metric in self.metrics for mean in self.means))

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        found = {
            f"{name}.{metric}": context.metric(sample, lane, metric)
            for name, lane in self.lanes.items()
            for metric in self.metrics
        }
        for metric in self.metrics:
            for mean, lanes in self.means.items():
                found[f"{mean}.{metric}"] = sum(found[f"{lane}.{metric}"] for lane in lanes) / len(lanes)
        return {name: found[name] for name in self.names}


def size_mb(tokens: int, elements: float, kept: int, bits: float) -> float:
    """Megabytes (10^6) of ``tokens`` of ``elements`` each, ``kept`` of them at 16 bits, the others at ``bits``."""
    return elements * (16 * kept + bits * (tokens - kept)) / 8e6


class Width(Frozen):
    """Bits of an element in groups: codes, and scale, zero-point and mask shared by a group."""

    code_bits: float
    group_size: int
    scale_bits: int
    zero_bits: int
    mask_bits: int = 0

    @property
    def bits(self) -> float:
        return self.code_bits + (self.scale_bits + self.zero_bits + self.mask_bits) / self.group_size


class StoredSize(Measure):
    """Megabytes a lane holds for the prompt against a formula: ``held_mb``, ``formula_mb``."""

    lane: ClaimLane
    width: Width
    kept_tokens: int

    @property
    def names(self) -> tuple[str, ...]:
        return ("held_mb", "formula_mb")

    def on_text(self, context: Context, sample: Sample) -> Numbers:
        elements = 2 * sample.keys[..., 0, :].numel()
        return {
            "held_mb": context.metric(sample, self.lane, "megabytes"),
            "formula_mb": size_mb(sample.prompt, elements, self.kept_tokens, self.width.bits),
        }


class PrintedSize(Frozen):
    """One column of a paper's table of sizes."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    fp16_mb: float
    printed_mb: float


class PrintedSizes(Measure):
    """A paper's printed cache sizes against the formula; the number of tokens follows from its fp16 size."""

    reads_texts = False
    rows: tuple[PrintedSize, ...]
    width: Width
    kept_tokens: int

    @property
    def names(self) -> tuple[str, ...]:
        return ("printed_mb", "formula_mb")

    def cases(self, context: Context) -> dict[str, Numbers]:
        return dict(self._rows())

    def _rows(self) -> Iterable[tuple[str, Numbers]]:
        for row in self.rows:
            elements = 2 * row.layers * row.kv_heads * row.head_dim
            tokens = round(row.fp16_mb * 1e6 / (2 * elements))
            formula = size_mb(tokens, elements, self.kept_tokens, self.width.bits)
            yield row.name, {"printed_mb": row.printed_mb, "formula_mb": formula}
