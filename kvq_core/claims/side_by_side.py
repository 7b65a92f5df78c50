"""Boards of several models joined claim by claim: a verdict per model, and whether it flips with the model.

Pure: the boards are given, and nothing is measured. ``kvq_core.claims.tables`` writes what is joined here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvq_core.claims.board import Board, ClaimResult, within_noise

FLIPS = "flips with the model"
NOT_MEASURED = "not measured on this model"
JUDGED = ("holds", "does not hold here")


@dataclass(frozen=True)
class ClaimRow:
    """One claim on every model: ``claim`` as the first board tells it that has it, ``results`` by board.

    A result is None where a board lacks the claim or judged it by another criterion: its verdict is one on another
    question. ``mended``: of a mended file, where the claim flips between the models; it is no model of its own.
    """

    claim: ClaimResult
    results: tuple[ClaimResult | None, ...]
    mended: ClaimResult | None = None

    @property
    def flips(self) -> bool:
        """Whether it holds on one model and not on another; what was not tested is neither."""
        return {found.verdict for found in self.results if found} >= set(JUDGED)

    @property
    def holds_on_all(self) -> bool:
        return all(found is not None and found.verdict == "holds" for found in self.results)

    @property
    def judged_on_all(self) -> bool:
        return all(found is not None and found.verdict in JUDGED for found in self.results)

    @property
    def in_doubt(self) -> bool:
        """Whether a verdict that other texts may well turn is among those it rests on."""
        return any(found is not None and found.verdict in JUDGED and within_noise(found) for found in self.results)


def claim_rows(boards: Sequence[Board]) -> tuple[ClaimRow, ...]:
    """A row a claim that any model's board has, papers and their claims in the order in which the boards bring them."""
    firsts: dict[str, ClaimResult] = {}
    mended = {claim.id: claim for board in boards if board.mends for claim in board.claims}
    boards = of_models(boards)
    for board in boards:
        for claim in board.claims:
            firsts.setdefault(claim.id, claim)
    papers = list(dict.fromkeys(claim.paper for claim in firsts.values()))
    ordered = sorted(firsts.values(), key=lambda claim: papers.index(claim.paper))
    by_id = [{claim.id: claim for claim in board.claims} for board in boards]
    rows = (ClaimRow(claim, tuple(_same(claim, known.get(claim.id)) for known in by_id)) for claim in ordered)
    return tuple(replace(row, mended=_same(row.claim, mended.get(row.claim.id))) if row.flips else row for row in rows)


def of_models(boards: Sequence[Board]) -> list[Board]:
    """Those of models as they were published, a column each; a mended file's stands beside them."""
    return [board for board in boards if board.mends is None]


def mended_board(boards: Sequence[Board]) -> Board | None:
    return next((board for board in boards if board.mends), None)


def _same(claim: ClaimResult, found: ClaimResult | None) -> ClaimResult | None:
    return found if found is not None and found.criterion == claim.criterion else None


def short_title(title: str) -> str:
    """A model's title for the head of a column, without what says how it was tuned and stored."""
    return title.split("-Instruct")[0]


def summary(boards: Sequence[Board]) -> str:
    """``20 of 29 hold on both models; 5 flip with the model, 2 of them with a verdict within noise.``"""
    rows, boards = claim_rows(boards), of_models(boards)
    held = sum(row.holds_on_all for row in rows)
    if len(boards) == 1:
        return f"{held} of {len(rows)} hold here; {sum(row.in_doubt for row in rows)} verdicts are within noise."
    models = "both models" if len(boards) == 2 else f"all {len(boards)} models"
    flips = [row for row in rows if row.flips]
    doubted, apart = sum(row.in_doubt for row in flips), sum(not row.judged_on_all for row in rows)
    noise = f", {doubted} of them with a verdict within noise" if doubted else ""
    turn = f"{len(flips)} {'flips' if len(flips) == 1 else 'flip'} with the model{noise}"
    missing = f"; {apart} were not judged on {models}" if apart else ""
    judged = [row.mended.verdict for row in flips if row.mended]
    there = f"; {len(judged)} of those were judged on a mended file too, where {judged.count('holds')} hold"
    mended = there if judged else ""
    return f"{held} of {len(rows)} hold on {models}; {turn}{mended}{missing}."
