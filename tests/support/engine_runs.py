"""Running the engine on token ids, without a tokenizer."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvq_core.engine.decode import Decode
from kvq_core.engine.lane_state import LaneState
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.tap import Tap
from kvq_core.models import LoadedModel
from kvq_core.spec import ComparisonSpec, Lane


@dataclass
class Outcome:
    """A finished engine run: the decode with its results, and the logits of every scored position."""

    decode: Decode
    reference: list[Tensor] = field(default_factory=list)  # each (n, vocabulary)
    lanes: list[Tensor] = field(default_factory=list)  # each (lanes, n, vocabulary)
    closed: int = 0

    def logits(self) -> tuple[Tensor, Tensor]:
        """(positions, vocabulary) and (lanes, positions, vocabulary)."""
        return torch.cat(self.reference), torch.cat(self.lanes, 1)

    def state(self, label: str) -> LaneState:
        return next(s for s in self.decode.states if s.lane.label == label)


def run_engine(
    model: LoadedModel,
    ids: list[int],
    lanes: list[Lane],
    new: int,
    *,
    follow: list[int] | None = None,
    tap: Tap | None = None,
    audit: bool = False,
    scored: tuple[int, ...] = (),
    given: list[int] | None = None,
    answered: Tensor | None = None,
    **options: object,
) -> Outcome:
    """Prefill, encode, decode. ``follow``: score these tokens instead of generating; ``audit``: check after every step
    that each row's packed store decodes to exactly the working copy attention reads."""
    prefill = SharedPrefill(model, ids, scored)
    list(prefill.run())
    spec = ComparisonSpec(prompt="-", max_new_tokens=new, lanes=tuple(lanes), **options)  # type: ignore[arg-type]
    decode = Decode(model, prefill, spec, list(spec.lanes), given=given, answered=answered)
    if follow is not None:
        decode.follow, decode.total = follow, len(follow)
        decode.rope = model.rope(len(ids) + len(follow))
    outcome = Outcome(decode)
    list(decode.encode())
    list(decode.fill())

    def score(reference: Tensor, rows: Tensor, targets: list[int]) -> None:
        assert len(targets) == len(reference)
        outcome.reference.append(reference)
        outcome.lanes.append(rows)

    def close(rows: Rows) -> None:
        outcome.closed += 1

    for _ in decode.steps(score, tap, close):
        if audit:
            check_stores(decode)
    return outcome


def check_stores(decode: Decode) -> None:
    """Every live row's packed store, decoded afresh, is the working copy."""
    if decode._over() and len(decode.rows.lane_of) <= len(decode.states_running):
        return  # the last free row has ended: nothing is live
    forced = len(decode.rows.lane_of) - len(decode._free)
    owners = [(r, s.cache) for r, s in enumerate(decode.states_running, 1) if r < forced]
    owners += [(forced + i, s.free) for i, s in enumerate(decode._free)]
    for row, cache in owners:
        assert cache is not None
        cache = cache.fork()  # tokens may wait in the working copy, and go on to
        decode.rows.catch_up(row, cache)
        for part in cache.parts:
            stored = torch.cat([values for _, values in cache.pieces(part)], -2)
            for i, layer in enumerate(part.layers.tolist()):
                read = decode.rows.working(row, part.group, part.kind, layer)
                torch.testing.assert_close(stored[i], read, rtol=0, atol=2e-6)
