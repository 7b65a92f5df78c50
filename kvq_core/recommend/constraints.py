"""What a recommendation is asked for: room, context, batch, tolerance and engine; and its answer as data, which the
command, the API and the page show.
"""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

from kvq_core.analysis.verdict import TIERS, Tier
from kvq_core.engines import engines
from kvq_core.errors import SpecError, excerpt
from kvq_core.sizing.count import ServedBy
from kvq_core.spec.part import SpecPart

CONTEXT = 8_192  # tokens, where none is asked for
MOST = 2**24  # tokens and sequences that may be asked for
_TASK = "task:"
_ALLOWED = ", ".join(tier.word for tier in TIERS[:-1])


@dataclass(frozen=True)
class Tolerance:
    """What a lane may lose at most: mean KLD in nats; of a tier all that its rule bounds; or the share ``task`` of what
    the model gets right that the lane gets wrong."""

    words: str
    kld: float = inf
    tier: Tier | None = None
    task: float | None = None

    @property
    def in_words(self) -> str:
        """``words``, and of a tier its thresholds."""
        if (bound := self.tier) is None:
            return self.words
        text = f", own texts that repeat themselves {bound.repeats:.0%}" if isfinite(bound.repeats) else ""
        figures = f"mean KLD up to {bound.kld:g} nats, flips {bound.flips:.0%}, p99 {bound.p99:g} nats"
        return f"{self.words} ({figures}{text})"

    @classmethod
    def parse(cls, given: str | float) -> "Tolerance":
        """A tier's name, nats, or ``task:`` and a share. Raises SpecError."""
        text = str(given).strip().lower()
        for tier in TIERS[:-1]:
            if text == tier.word:
                return cls(f"the tier {tier.word}", tier.kld, tier)
        if text.startswith(_TASK):
            share = _number(text.removeprefix(_TASK))
            if share is not None and 0 <= share < 1:
                return cls(f"a loss of {share:.3g} of the tasks", task=share)
        elif (nats := _number(text)) is not None and nats > 0:
            return cls(f"a mean KLD of {nats:.3g} nats", kld=nats)
        raise SpecError(
            f"tolerance = {excerpt(given)} is not allowed; give {_ALLOWED}, a mean KLD in nats above 0, or task: and "
            "a share of right answers that may be lost, such as task:0.02."
        )


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if isfinite(found) else None


@dataclass(frozen=True)
class Ask:
    """At most one of ``memory`` (bytes that weights and cache share), ``cache`` (bytes of the cache alone) and ``bits``
    (an element of keys and values) limits the room; None of them: the smallest cache is sought.
    ``batched_tokens``: new tokens that the engine reads at once, None: as many as it does by itself on such a card."""

    tolerance: Tolerance
    context: int = CONTEXT
    batch: int = 1
    memory: int | None = None
    cache: int | None = None
    bits: float | None = None
    engine: str | None = None
    batched_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("context", "batch", "batched_tokens"):
            value = getattr(self, name)
            if name == "batched_tokens" and value is None:
                continue
            if not isinstance(value, int) or not 1 <= value <= MOST:
                raise SpecError(f"{name} = {excerpt(value)} is not allowed; give a whole number from 1 to {MOST:,}.")
        given = [name for name in ("memory", "cache", "bits") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SpecError(f"{' and '.join(given)} are given; give one of memory, cache and bits.")
        if self.bits is not None and not 0 < self.bits <= 16:
            raise SpecError(f"bits = {self.bits} is not allowed; give a number above 0, at most 16.")

    @property
    def served(self) -> ServedBy | None:
        """The engine, where one is named whose reserve is known."""
        if self.engine not in engines():
            return None
        return ServedBy(self.engine, self.memory, self.batched_tokens)

    @property
    def room(self) -> Literal["memory", "cache", "bits"] | None:
        """What limits it."""
        names: tuple[Literal["memory", "cache", "bits"], ...] = ("memory", "cache", "bits")
        return next((name for name in names if getattr(self, name) is not None), None)


def engine_of(given: str | None) -> str | None:
    """An engine's name as it is written elsewhere. Raises SpecError for one whose flags are not known."""
    if given is None:
        return None
    known = {name.lower(): name for name in engines()}
    if given.strip().lower() not in known:
        raise SpecError(f"engine = {excerpt(given)} is not allowed; flags are known of {', '.join(known)}.")
    return known[given.strip().lower()]


class LaneCandidate(SpecPart):
    """A lane of the study. ``bytes``: of its cache for what was asked, None where they are not known, ``reserved``
    where they are what the engine sets aside; ``shared``: of codebooks and the like, once beside them; ``host_copy``:
    in the host's memory; ``counted``: what of it follows from random numbers or from a formula; nats with their 95 %
    interval over prompts, None of fewer than 5; ``holds``: whether its figures are within the tolerance; ``front``: no
    other lane takes no more bytes and loses no more; ``why_not``: why it cannot be the answer, None where it can."""

    label: str
    bytes: int | None
    reserved: bool
    shared: int = 0
    host_copy: int = 0
    counted: tuple[str, ...] = ()
    kld_mean: float | None
    kld_low: float | None
    kld_high: float | None
    fits: bool | None
    holds: bool
    front: bool
    policy: bool
    flags: str | None
    why_not: str | None

    @property
    def beside(self) -> tuple[tuple[int, str], ...]:
        """Bytes beside those of the cache, and what they are of."""
        told = (self.shared, "of the model"), (self.host_copy, "in host memory")
        return tuple(each for each in told if each[0])


class Worst(SpecPart):
    """A prompt on which the answer loses most; ``link`` opens its run."""

    prompt: str
    kld: float
    run: str
    link: str


class WeightsFile(SpecPart):
    """``bytes``: None where they are not known; ``chosen``: whether it was chosen among several for the memory."""

    file: str
    bytes: int | None
    how: str
    chosen: bool


class Advice(SpecPart):
    """The answer and what it rests on. ``kind``: one lane is the answer and prompts drawn anew say so (``sure``); it
    cannot be told from another; none will do; or there are too few prompts. ``lane``: the recommended one as a lane has
    it, None where there is none; ``separates``: what it has over ``runner_up``, whose lane is ``runner_up_lane``;
    ``agreement``: the share of resamples of the prompts with the same recommendation; ``flags`` of the ``engine``, in
    the ``version`` that was read, or ``unflagged``, why the lane has none; ``batched_tokens``: new tokens it was taken
    to read at once, where its reserve hangs on them; ``helps``: what would change the answer;
    ``untested``: what nothing here says."""

    answer: str
    kind: str
    sure: bool
    lane: dict[str, Any] | None
    label: str | None
    runner_up: str | None
    runner_up_lane: dict[str, Any] | None = None
    separates: str | None
    flags: str | None
    unflagged: str | None = None
    agreement: float | None
    reasons: tuple[str, ...]
    front: tuple[LaneCandidate, ...]
    worst: tuple[Worst, ...]
    warnings: tuple[str, ...]
    untested: tuple[str, ...]
    helps: tuple[str, ...]
    study: str
    model: str
    prompts: int
    tolerance: str
    context: int
    batch: int
    room: str | None
    engine: str | None
    version: str | None
    batched_tokens: int | None = None
    weights: WeightsFile
    plain_bytes: int
    plain_fits: bool | None
