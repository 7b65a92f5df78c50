"""The boards of the papers' claims as markup: a row a claim, in it each model's verdict as a chip with its numbers."""

from collections.abc import Sequence

from kvq_core.claims.board import (
    Board,
    ClaimResult,
    circumstances,
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
from ui.html.escape import safe

TONES = {"holds": "good", "does not hold here": "warn", "cannot be tested here": "quiet", "not measured": "quiet"}


def claims_table(boards: Sequence[Board]) -> str:
    """The boards side by side; rows that do not flip can be hidden. Everything is escaped: files can be edited."""
    models, mended = of_models(boards), mended_board(boards)
    heads = ("The paper says", "Tested here", *(short_title(board.model_title) for board in models))
    titles = "".join(f'<th scope="col">{safe(title)}</th>' for title in heads)
    titles += f'<th scope="col" class="mended">{safe(short_title(mended.model_title))}</th>' if mended else ""
    body = "".join(_row(row, models, mended) for row in claim_rows(boards))
    return (
        f'<div class="scroll" tabindex="0"><table class="claims"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<p class="muted">Under a model: the verdict, and each number\'s mean (lowest to highest text). '
        f"{safe(circumstances(*boards))} Criteria were written down before anything was measured.</p>"
    )


def latency_claims(boards: Sequence[DeviceBoard]) -> str:
    """The claims about time, a column a GPU; nothing where none was measured."""
    if not boards:
        return ""
    heads = "".join(f'<th scope="col">{safe(title)}</th>' for title in ("The paper says", "Tested here"))
    heads += "".join(f'<th scope="col">{safe(board.device)}</th>' for board in boards)
    body = "".join(
        _told(found[0], [_verdict(each, board.device, RULE) for each, board in zip(found, boards, strict=True)])
        for found in zip(*(board.claims for board in boards), strict=True)
    )
    return (
        f'<h3>Claims about time</h3><div class="scroll" tabindex="0"><table class="claims"><thead><tr>{heads}</tr>'
        f'</thead><tbody>{body}</tbody></table></div><p class="muted">{safe(RULE)} '
        f"{safe('. '.join(board.versions for board in boards))}.</p>"
    )


def _row(row: ClaimRow, boards: Sequence[Board], mended: Board | None) -> str:
    cells = [_cell(found, board) for found, board in zip(row.results, boards, strict=True)]
    if mended and row.mended:
        cells.append(_cell(row.mended, mended, ' class="mended"'))
    return _told(row.claim, cells, row.flips)


def _told(claim: ClaimResult, cells: Sequence[str], flips: bool = False) -> str:
    """What the paper says and what is tested, then a cell a column."""
    quote = f"<div>“{safe(claim.quote)}”</div><small>{safe(claim.quoted_from)}</small>" if claim.quote else ""
    less = f"<small>Less than the paper says: {safe(claim.less)}</small>" if claim.less else ""
    link = f'<a href="https://arxiv.org/abs/{safe(claim.arxiv)}" target="_blank" rel="noopener">{safe(claim.paper)}</a>'
    mark = f' <span class="badge bad">{FLIPS}</span>' if flips else ""
    setting = "".join(f"<small>{safe(text)}</small>" for text in (f"{claim.setting}.", claim.note) if text)
    return (
        f'<tr class="{"flips" if flips else "same"}"><td>{link}{quote}</td>'
        f"<td>{safe(claim.sentence)}{mark}<small>{safe(claim.where)}</small>{less}"
        f"<details><summary>Setting</summary>{setting}</details></td>{''.join(cells)}</tr>"
    )


def _cell(found: ClaimResult | None, board: Board, of: str = "") -> str:
    return _verdict(found, short_title(board.model_title), board.rule, of)


def _verdict(found: ClaimResult | None, column: str, rule: str, of: str = "") -> str:
    """A column's verdict; its name, which the head of the column says, is for screens that show no columns."""
    name = f'<b class="of">{safe(column)}</b>'
    if found is None:
        return f'<td>{name}<span class="badge quiet">{NOT_MEASURED}</span></td>'
    noise = "within noise" if within_noise(found) else ""
    held = f"in {texts_share(found)}" if found.texts else ""
    chip = f'<span class="badge {TONES[found.verdict]}" title="{safe(rule)}">{safe(found.verdict)}</span>'
    remark = f"<small>{safe(', '.join(filter(None, (noise, held))))}</small>" if noise or held else ""
    numbers = "".join(f"<div>{safe(line)}</div>" for line in measurement_lines(found))
    cases = {text.text: text.numbers for text in found.texts}
    every = "".join(_map(lane, rows) for lane, rows in recall_maps(cases).items())
    maps = f"<details><summary>By depth and length</summary>{every}</details>" if every else ""
    return f"<td{of}>{name}{chip}{remark}{numbers}{maps}</td>"


def _map(lane: str, rows: Sequence[Sequence[str]]) -> str:
    """Needles found by depth and length."""
    lines = ("".join(f"<td>{safe(cell)}</td>" for cell in row) for row in rows)
    return f"<table><caption>{safe(lane)}</caption>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def claims_missing(reason: str) -> str:
    return f'<p class="muted">{safe(reason)}</p>'


def claims_summary(boards: Sequence[Board]) -> str:
    """What holds on all models and what flips, then a line a model with the count of its verdicts."""
    lines = [f"<b>{safe(summary(boards))}</b>"] if len(boards) > 1 else []
    lines += [f"{safe(board.model_title)}: {safe(verdicts_counted(board))}." for board in of_models(boards)]
    return "<p>" + "<br>".join(lines) + "</p>"


def verdicts_counted(board: Board) -> str:
    """``20 hold (3 within noise), 5 do not hold here, 4 cannot be tested here``."""
    count = {verdict: sum(claim.verdict == verdict for claim in board.claims) for verdict in TONES}
    words = ("hold", "do not hold here", "cannot be tested here", "are not measured")
    doubted = {v: sum(claim.verdict == v and within_noise(claim) for claim in board.claims) for v in TONES}
    noise = [f" ({n} within noise)" if n else "" for n in doubted.values()]
    return ", ".join(f"{n} {word}{d}" for n, word, d in zip(count.values(), words, noise, strict=True) if n)
