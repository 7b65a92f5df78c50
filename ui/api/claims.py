"""The papers' claims as the API gives them."""

from collections.abc import Sequence

from kvq_core.claims.board import Board, measurement_lines, stored_boards, texts_share, within_noise
from kvq_core.claims.side_by_side import NOT_MEASURED, ClaimRow, claim_rows, mended_board, of_models
from kvq_core.errors import KvqError, excerpt
from ui.api.schemas import ClaimInfo


def claims_of(paper: str, model: str) -> list[ClaimInfo]:
    """Of a paper, or of all, measured on a model. Raises KvqError where there are none."""
    every = stored_boards()
    boards, mended = of_models(every), mended_board(every)
    if model not in [board.model for board in boards]:
        raise KvqError(f"There is no board of {excerpt(model)}; models: {', '.join(b.model for b in boards)}.")
    boards.sort(key=lambda board: board.model != model)  # the model's own board first
    rows = claim_rows([*boards, *([mended] if mended else [])])
    papers = {row.claim.paper.lower(): row.claim.paper for row in rows}
    if paper and paper.lower() not in papers:
        raise KvqError(f"There are no claims of {excerpt(paper)}; papers: {', '.join(papers.values())}.")
    wanted = [row for row in rows if row.results[0] and paper.lower() in ("", row.claim.paper.lower())]
    return [_claim(row, boards, mended) for row in wanted]


def _claim(row: ClaimRow, boards: Sequence[Board], mended: Board | None) -> ClaimInfo:
    claim, found = row.claim, list(zip(boards, row.results, strict=True))
    if mended and row.mended:
        found.append((mended, row.mended))
    return ClaimInfo(
        paper=claim.paper,
        arxiv=claim.arxiv,
        claim=claim.sentence,
        where=claim.where,
        quote=claim.quote,
        quoted_from=claim.quoted_from,
        less=claim.less,
        setting=claim.setting,
        criterion=list(claim.criterion),
        verdict=claim.verdict,
        within_noise=within_noise(claim),
        held=texts_share(claim),
        measured=measurement_lines(claim),
        reason=claim.reason,
        verdicts={board.model: result.verdict if result else NOT_MEASURED for board, result in found},
        flips_with_the_model=row.flips,
    )
