"""Boards as text: for a terminal, for documents, as JSON; several of them side by side."""

import json
from collections.abc import Callable, Sequence

from kvq_core.claims.board import (
    Board,
    ClaimResult,
    board_json,
    circumstances,
    main_figure,
    measurement_lines,
    texts_share,
    within_noise,
)
from kvq_core.claims.latency import RULE, DeviceBoard
from kvq_core.claims.shares import recall_maps
from kvq_core.claims.side_by_side import (
    FLIPS,
    NOT_MEASURED,
    ClaimRow,
    claim_rows,
    mended_board,
    of_models,
    short_title,
    summary,
)


def plain_table(boards: Sequence[Board]) -> str:
    """The boards for a terminal: a claim with what the paper says of it, then a verdict a model with its numbers."""
    lines, paper = [circumstances(*boards), summary(boards)], ""
    for row in claim_rows(boards):
        claim = row.claim
        if claim.paper != paper:
            paper = claim.paper
            lines += ["", f"{paper} (arXiv:{claim.arxiv})"]
        lines += [f"  {_plain_head(row)}"]
        lines += [f"      the paper ({claim.quoted_from}): {claim.quote}"] if claim.quote else []
        lines += [f"      less: {claim.less}"] if claim.less else []
        for board, found in _columns(row, boards):
            lines += [f"      {short_title(board.model_title)}: {_plain_verdict(found)}"] if len(boards) > 1 else []
            lines += [f"      {line}" for line in (measurement_lines(found) if found else ())]
    return "\n".join(lines)


def _columns(row: ClaimRow, boards: Sequence[Board]) -> list[tuple[Board, ClaimResult | None]]:
    """The row's verdicts by board; of a mended file only where it has one."""
    found, mended = list(zip(of_models(boards), row.results, strict=True)), mended_board(boards)
    return found if mended is None or row.mended is None else [*found, (mended, row.mended)]


def _plain_head(row: ClaimRow) -> str:
    if len(row.results) == 1:
        return f"{_plain_verdict(row.results[0])}  {row.claim.sentence}"
    return (f"{FLIPS.upper()}  " if row.flips else "") + row.claim.sentence


def _plain_verdict(found: ClaimResult | None) -> str:
    if found is None:
        return NOT_MEASURED.upper()
    noise = ", WITHIN NOISE" if within_noise(found) else ""
    return f"{found.verdict.upper()}{noise}" + (f"  (in {texts_share(found)})" if found.texts else "")


def markdown_table(boards: Sequence[Board]) -> str:
    """The whole boards, a row a claim and a column a model, as docs/claims.md shows them."""
    mended = mended_board(boards) is not None
    heads = ["Paper", "The paper says", "Tested here", *(board.model_title for board in boards)]
    rows = [[*_cells(row), *([_mended(row, _measured)] if mended else [])] for row in claim_rows(boards)]
    return "\n".join(
        [
            summary(boards),
            "",
            *markdown_rows([heads, *rows]),
            "",
            "Under a model's name: the verdict, in how many texts it holds, and what was measured, each number's mean "
            f"(lowest to highest text). {circumstances(*boards)}",
        ]
    )


def summary_table(boards: Sequence[Board]) -> str:
    """A line a claim, a verdict a model and the main figures, in the order of the models; then what was measured on
    what."""
    mended = mended_board(boards) is not None
    heads = [
        "Paper",
        "Claim",
        *(short_title(board.model_title) for board in boards),
        "Main figures: means over the texts",
    ]
    rows = [
        [
            row.claim.paper,
            row.claim.sentence + _mark(row),
            *map(verdict_markdown, row.results),
            *([_mended(row, verdict_markdown)] if mended else []),
            "<br>".join(main_figure(found, measured) for found in measured),
        ]
        for row in claim_rows(boards)
        for measured in [[found for found in (*row.results, row.mended) if found]]
    ]
    return "\n".join([summary(boards), "", *markdown_rows([heads, *rows]), "", circumstances(*boards)])


def latency_table(boards: Sequence[DeviceBoard]) -> str:
    """The claims about time, a column a device."""
    heads = ["Paper", "The paper says", "Tested here", *(board.device for board in boards)]
    rows = [[*_cells(ClaimRow(each[0], each))] for each in zip(*(board.claims for board in boards), strict=True)]
    return "\n".join([*markdown_rows([heads, *rows]), "", f"{RULE} {'. '.join(b.versions for b in boards)}."])


def plain_latency(boards: Sequence[DeviceBoard]) -> str:
    """The same for a terminal."""
    lines = ["Claims about time, by this project's kernels", RULE]
    for each in zip(*(board.claims for board in boards), strict=True):
        lines += ["", f"{each[0].paper} (arXiv:{each[0].arxiv})  {each[0].sentence}"]
        lines += [f"      the paper ({each[0].quoted_from}): {each[0].quote}", f"      less: {each[0].less}"]
        for board, found in zip(boards, each, strict=True):
            lines += [f"      {board.versions}: {_plain_verdict(found)}"]
            lines += [f"      {line}" for line in measurement_lines(found)]
    return "\n".join(lines)


def maps_tables(boards: Sequence[Board]) -> str:
    """What needles were found, a small map a lane and model; a sentence where none was measured."""
    parts = []
    for board in of_models(boards):
        for claim in board.claims:
            for lane, rows in recall_maps({text.text: text.numbers for text in claim.texts}).items():
                parts += [f"{short_title(board.model_title)}, {lane}:", "\n".join(markdown_rows(rows))]
    return "\n\n".join(parts) or "Not measured yet."


def markdown_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def _cells(row: ClaimRow) -> list[str]:
    claim = row.claim
    quote = f"“{claim.quote}” *{claim.quoted_from}*" if claim.quote else ""
    less = f"<br>*Less than the paper says:* {claim.less}" if claim.less else ""
    tested = f"{claim.sentence}{_mark(row)} *{claim.where}*{less}"
    return [claim.paper, quote, tested, *map(_measured, row.results)]


def _mark(row: ClaimRow) -> str:
    return f" **{FLIPS.capitalize()}.**" if row.flips else ""


def _mended(row: ClaimRow, told: Callable[[ClaimResult], str]) -> str:
    return "" if row.mended is None else told(row.mended)


def _measured(found: ClaimResult | None) -> str:
    return "<br>".join([verdict_markdown(found), *(measurement_lines(found) if found else ())])


def verdict_markdown(found: ClaimResult | None) -> str:
    """The verdict in Markdown, with its mark and the share of the texts."""
    if found is None:
        return NOT_MEASURED
    noise = ", *within noise*" if within_noise(found) else ""
    return f"{found.verdict}{noise}" + (f", in {texts_share(found)}" if found.texts else "")


def boards_json(boards: Sequence[Board], timed: Sequence[DeviceBoard] = ()) -> str:
    """One board as it is stored; several as ``{"flips": [ids of claims], "boards": [each as it is stored], "latency":
    [the boards of claims about time]}``."""
    if len(boards) == 1:
        return board_json(boards[0])
    flips = [row.claim.id for row in claim_rows(boards) if row.flips]
    told = {"boards": boards, "latency": timed}
    made = {name: [board.model_dump(mode="json") for board in each] for name, each in told.items()}
    return json.dumps({"flips": flips, **made}, indent=1) + "\n"
