"""Which lane is the answer, and in how many resamples of the prompts it still is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from kvq_core.advice.evidence import Array, Evidence
from kvq_core.analysis.scored import CONFIDENCE
from kvq_core.studies.pairs import PairedDifference, needed_prompts

RESAMPLES = 2000
SAME = 0.02  # lanes whose bytes differ by no more are alike in size; of these the one that loses least is the answer


@dataclass(frozen=True)
class Option:
    """A lane as it would be deployed. ``nbytes``: of its cache for all sequences, None where they are not known;
    ``reserved``: whether these are what the engine sets aside, else what the tensors take; ``shared``: of codebooks and
    the like, once beside them; ``host_copy``: in the host's memory; ``counted``: what of it follows from random numbers
    or from a formula; ``fits``: None where no room was given, or the weights are not known; ``flags``: the command of
    the engine named, of the first that has it where none is; ``refused``: why the engine named cannot have it, or that
    its bytes are not known; ``unread``: that it read its prompts otherwise than its engine does, which leaves it
    without flags. ``policy``: whether layers differ in it."""

    label: str
    lane: dict[str, object]
    nbytes: int | None
    reserved: bool = False
    shared: int = 0
    host_copy: int = 0
    counted: tuple[str, ...] = ()
    fits: bool | None = None
    flags: str | None = None
    refused: str | None = None
    unread: str | None = None
    policy: bool = False

    @property
    def size(self) -> float:
        """Its bytes to compare by: one whose are not known is larger than all."""
        return inf if self.nbytes is None else self.nbytes


@dataclass(frozen=True)
class AdvisedChoice:
    """``best``: the answer, None where no lane will do; ``agreement``: the share of resamples of the prompts with the
    same answer, None of too few prompts; ``rival``: what most of the others say, None where they say that none will do,
    or there are no others; ``second``: the answer without the best; ``depends``: the lane of which it is open whether
    it holds, None where that decides nothing: which of two lanes alike in size loses less is open then, or nothing is;
    ``more``: prompts beside those there are that would tell, None where no number that anybody asks would."""

    best: str | None
    agreement: float | None
    rival: str | None
    second: str | None
    depends: str | None
    more: int | None

    @property
    def sure(self) -> bool:
        return self.agreement is not None and self.agreement >= CONFIDENCE


def choose(found: Evidence, options: Sequence[Option], pair: Callable[[str, str], PairedDifference]) -> AdvisedChoice:
    """The smallest lane that fits, that the engine has and that holds on the prompts; of lanes alike in size the one
    that loses least. ``agreement`` counts how often prompts drawn with replacement give the same; ``pair``: how the
    study compares two lanes."""
    usable, sizes = _had(found, options)
    count = len(found.prompts)
    (best,) = _best(found, np.full((1, count), 1 / count), usable, sizes)
    others = usable.copy()
    others[best] &= best < 0
    (second,) = _best(found, np.full((1, count), 1 / count), others, sizes)
    if not found.enough:
        return AdvisedChoice(_name(found, best), None, None, _name(found, second), None, None)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    drawn = _best(found, draws / count, usable, sizes)
    agreement = float((drawn == best).mean())
    rest = drawn[drawn != best]
    names, times = np.unique(rest, return_counts=True)
    rival = int(names[times.argmax()]) if len(rest) else -1
    depends, more = (None, None) if agreement >= CONFIDENCE else _open(found, best, rival, sizes, pair)
    return AdvisedChoice(_name(found, best), agreement, _name(found, rival), _name(found, second), depends, more)


def best_lane(found: Evidence, options: Sequence[Option]) -> str | None:
    """The answer that ``choose`` gives on the prompts as they are, however few; None where no lane will do."""
    usable, sizes = _had(found, options)
    count = len(found.prompts)
    (best,) = _best(found, np.full((1, count), 1 / count), usable, sizes)
    return _name(found, best)


def _had(found: Evidence, options: Sequence[Option]) -> tuple[Array, Array]:
    """Of every lane whether it can be had at all, and its bytes."""
    by_label = {option.label: option for option in options}
    own = [by_label[lane] for lane in found.lanes]
    usable = np.array([o.fits is not False and o.refused is None and o.label not in found.failed for o in own])
    return usable, np.array([option.size for option in own])


def _best(found: Evidence, weights: Array, usable: Array, sizes: Array) -> Array:
    """(draws): the number of the lane that is the answer, -1 where none will do."""
    allowed = found.holds(weights) & usable
    bytes_ = np.where(allowed, sizes, np.inf)
    least = bytes_.min(1, keepdims=True)
    near = allowed & (bytes_ <= least * (1 + SAME))
    loss = np.where(near, weights @ found.kld, np.inf)
    return np.where(allowed.any(1), loss.argmin(1), -1)


def _name(found: Evidence, at: int) -> str | None:
    return None if at < 0 else found.lanes[at]


def _open(
    found: Evidence, best: int, rival: int, sizes: Array, pair: Callable[[str, str], PairedDifference]
) -> tuple[str | None, int | None]:
    """``depends`` and ``more`` of the choice: of lanes alike in size that the study does not tell apart as many prompts
    as it asks for, else those with which a t test tells whether the first choice holds."""
    at = sorted((each for each in (best, rival) if each >= 0), key=lambda each: sizes[each])
    first = found.lanes[at[0]]
    if len(at) == 2 and sizes[at[1]] - sizes[at[0]] <= SAME * sizes[at[0]]:
        told = pair(*(found.lanes[each] for each in at))
        if not told.apart:
            return None, None if told.needed is None else max(1, told.needed - told.prompts)
        first = told.a if told.difference < 0 else told.b
    what = found.tightest(first)
    spread = float(what.std(ddof=1))
    needed = needed_prompts(float(what.mean()) / spread, 1) if spread > 0 else None
    return first, None if needed is None else max(1, needed - len(what))
