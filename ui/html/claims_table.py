"""The board of the papers' claims as markup: a row a claim, the verdict as a chip."""

from kvq_core.claims.board import Board, ClaimResult, circumstances, measurement_lines, texts_share, within_noise
from ui.html.escape import safe

TONES = {"holds": "good", "does not hold here": "warn", "cannot be tested here": "quiet"}
HEAD = (
    "The paper says",
    "Tested here",
    "Here, in how many texts",
    "Measured: mean (lowest to highest text)",
    "Setting",
)


def claims_table(board: Board) -> str:
    """The whole board. Everything is escaped: a board is a file, and files can be edited."""
    titles = "".join(f'<th scope="col">{safe(title)}</th>' for title in HEAD)
    rows = "".join(_row(claim, board) for claim in board.claims)
    return (
        f'<p class="muted">{safe(circumstances(board))} Criteria were written down before anything was measured.</p>'
        f'<div class="scroll" tabindex="0"><table class="claims"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(claim: ClaimResult, board: Board) -> str:
    noise = "<small>within noise</small>" if within_noise(claim) else ""
    quote = f"<div>“{safe(claim.quote)}”</div><small>{safe(claim.quoted_from)}</small>" if claim.quote else ""
    less = f"<small>Less than the paper says: {safe(claim.less)}</small>" if claim.less else ""
    link = f'<a href="https://arxiv.org/abs/{safe(claim.arxiv)}" target="_blank" rel="noopener">{safe(claim.paper)}</a>'
    held = f"<small>in {safe(texts_share(claim))}</small>" if claim.texts else ""
    chip = f'<span class="badge {TONES[claim.verdict]}" title="{safe(board.rule)}">{safe(claim.verdict)}</span>'
    numbers = "".join(f"<div>{safe(line)}</div>" for line in measurement_lines(claim))
    note = f"<small>{safe(claim.note)}</small>" if claim.note else ""
    setting = f"<small>{safe(claim.setting)}. Measured {safe(board.created[:10])}.</small>"
    return (
        f"<tr><td>{link}{quote}</td>"
        f"<td>{safe(claim.sentence)}<small>{safe(claim.where)}</small>{less}</td><td>{chip}{noise}{held}</td>"
        f"<td>{numbers}{note}</td><td>{setting}</td></tr>"
    )


def claims_missing(reason: str) -> str:
    return f'<p class="muted">{safe(reason)}</p>'


def claims_summary(board: Board) -> str:
    """``20 hold (3 within noise), 5 do not hold here, 4 cannot be tested here``."""
    count = {verdict: sum(claim.verdict == verdict for claim in board.claims) for verdict in TONES}
    words = ("hold", "do not hold here", "cannot be tested here")
    doubted = {v: sum(claim.verdict == v and within_noise(claim) for claim in board.claims) for v in TONES}
    noise = [f" ({n} within noise)" if n else "" for n in doubted.values()]
    return ", ".join(f"{n} {word}{d}" for n, word, d in zip(count.values(), words, noise, strict=True) if n)
