"""The most probable next tokens, as servers tell them, and how far two such lists are apart at least."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

LEAST_REST = 1e-7
NEAR_TIE = 0.2  # nats between the baseline's two best tokens, as metrics.fidelity has it


@dataclass(frozen=True)
class Top:
    """The most probable next tokens: ids and log-probabilities, most probable first."""

    ids: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def of(cls, ids: Sequence[int], logprobs: Sequence[float]) -> Self:
        """Raises ValueError for what is no list of log-probabilities of different tokens."""
        found, named = np.asarray(logprobs, np.float64), np.asarray(ids)
        if not len(found) or len(found) != len(named) or not np.isfinite(found).all() or found.max() > 0.01:
            raise ValueError("log-probabilities are missing or no numbers up to 0")
        if len(np.unique(named)) < len(named):
            raise ValueError("a token is listed twice")
        order = np.argsort(-found, kind="stable")
        total = np.logaddexp.reduce(found)  # the engine's own sums of many small ones are up to 3e-4 above 1
        return cls(named[order], found[order] - max(0.0, total))

    @property
    def near_tie(self) -> bool:
        return len(self.ids) > 1 and bool(self.logprobs[0] - self.logprobs[1] <= NEAR_TIE)

    def kld(self, other: "Top") -> float:
        """The least KL(self || other) in nats that both lists leave possible; exact where both list every token.

        A token that ``other`` does not list has at most the probability of the last one that it lists. Within that
        bound, what both leave open is least apart where unlisted tokens share it as ``self`` has them (the log sum
        inequality), so those whose share is above the bound get the bound, the largest first.
        """
        _, own, theirs = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        p, q = np.exp(self.logprobs[own]), np.exp(other.logprobs[theirs])
        whole = float((p * (self.logprobs[own] - other.logprobs[theirs])).sum())
        rest, room = 1 - float(p.sum()), 1 - float(q.sum())
        bound = float(np.exp(other.logprobs[-1]))
        for mass in np.exp(np.delete(self.logprobs, own)):  # of those that self alone lists
            if min(rest, room) < LEAST_REST or mass * room <= bound * rest:
                break
            whole += float(mass * np.log(mass / bound))
            rest, room = rest - float(mass), room - bound
        if min(rest, room) < LEAST_REST:  # every token is listed, what is left is rounding
            return whole
        return whole + float(rest * np.log(rest / room))


@dataclass(frozen=True)
class Apart:
    """Two lists at every position of a text: ``kld`` (positions,) nats at least, ``same`` whether the most probable
    token is the same, ``tie`` whether the baseline's two best were nearly tied, ``covered`` the mass that its list has,
    ``unlisted`` how many of its tokens the other does not list."""

    kld: np.ndarray
    same: np.ndarray
    tie: np.ndarray
    covered: np.ndarray
    unlisted: np.ndarray

    @classmethod
    def of(cls, answers: Sequence[Top], found: Sequence[Top]) -> Self:
        pairs = list(zip(answers, found, strict=True))
        return cls(
            np.array([own.kld(other) for own, other in pairs]),
            np.array([own.ids[0] == other.ids[0] for own, other in pairs], bool),
            np.array([own.near_tie for own, _ in pairs], bool),
            np.array([np.exp(own.logprobs).sum() for own, _ in pairs]),
            np.array([len(np.setdiff1d(own.ids, other.ids, assume_unique=True)) for own, other in pairs], int),
        )
