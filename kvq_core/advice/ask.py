"""What is asked of the advice: room, context, batch, tolerance and engine."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from kvq_core.analysis.verdict import TIERS, Tier
from kvq_core.engines import engines
from kvq_core.errors import SpecError, excerpt
from kvq_core.sizing.count import ServedBy

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
