"""A finished run as one HTML file that opens anywhere: no script, nothing fetched, light and dark."""

from pathlib import Path

from kvq_core.analysis.expected import expectation_sentence
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import LaneRecord, Record
from kvq_core.record.subset import BEST, TOGETHER, drawn_of
from ui.export.card import title
from ui.export.reproduce import command, conditions
from ui.export.svg import svg
from ui.export.views import VIEWS, caption
from ui.html.cards import scores, settings
from ui.html.colors import SEQUENTIAL, SEQUENTIAL_DARK
from ui.html.escape import lane_tokens, reference_tokens, safe
from ui.html.pieces import spans_of
from ui.html.tables import COLUMNS, perplexity_rows, scorecard
from ui.html.theme import properties, shades
from ui.html.verdict import EXPLAINED, near_ties, remarks, verdict
from ui.words.answer import answer_line

NUMBERS = (
    "Every lane decodes twice: forced along the reference's tokens, from which all distances come, and free, which is "
    "the text shown. KLD: how far the next-token distribution is from the reference's, in nats a token. Flips: "
    "positions where the most probable token changed. Bits and size are counted from the tensors held, metadata and "
    "full-precision windows included."
)
SCROLL = '<div class="scroll" tabindex="0">'
SHADED = "Shading: KLD of each token up to where the texts part (red bar); after it the two continue different texts."


def report(record: Record, arrays: Arrays, link: str = "") -> str:
    """The whole document, with the run's link where there is one. Every text of prompt, model or label is escaped."""
    drawn = drawn_of(record, arrays)
    parts = (
        _head(record, arrays, link),
        _scores(record, arrays),
        _answers(*drawn, some=drawn[0] is not record),
        _figures(*drawn),
        _again(record),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">'
        f"<title>{safe(title(record))}</title><style>{style()}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>"
    )


def style() -> str:
    """Of every page that leaves this one."""
    colors = properties("@media (prefers-color-scheme: dark){{:root{{{}}}}}") + shades(SEQUENTIAL, "")
    dark = f"@media (prefers-color-scheme: dark){{{shades(SEQUENTIAL_DARK, '')}}}"
    return colors + dark + Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def _head(record: Record, arrays: Arrays, link: str) -> str:
    env = record.environment
    facts = (
        f"Run {record.id}",
        record.created.replace("T", " "),
        f"{env.device} {env.dtype.removeprefix('torch.')}",
        *filter(None, [env.weights_note]),
        f"{env.layers} layers, {env.query_heads} query and {env.kv_heads} KV heads of {env.head_dim}",
        ", ".join(f"{name} {version}" for name, version in env.versions.items()),
    )
    prompt = record.question
    found = f'<p><a href="{safe(link)}">{safe(link)}</a></p>' if link else ""
    return (
        f"<section><h1>{safe(title(record))}</h1><p>{safe(answer_line(record, arrays))}</p>"
        f'<p class="mute">{safe(" · ".join(facts))}</p>{found}</section>'
        f"<section><h2>Prompt</h2><pre>{safe(prompt)}</pre></section>"
    )


def _scores(record: Record, arrays: Arrays) -> str:
    columns = [column for column in COLUMNS if column.name not in ("lane", "verdict")]
    head = "".join(f'<th scope="col">{safe(column.title)}</th>' for column in columns)
    tones = ["", *(verdict(record, arrays, index).tone for index in range(len(record.lanes)))]
    rows = ""
    for row, tone in zip(scorecard(record, arrays), tones, strict=True):
        word = f'<td class="{tone}">{safe(row["verdict"])}</td>'
        cells = "".join(f"<td>{safe(column.shown(row[column.name]))}</td>" for column in columns)
        rows += f'<tr><th scope="row">{safe(row["lane"])}</th>{word}{cells}</tr>'
    return (
        f"<section><h2>Scorecard</h2>{SCROLL}<table><thead><tr><th>lane</th><th>verdict</th>{head}</tr>"
        f'</thead><tbody>{rows}</tbody></table></div><p class="mute">{safe(NUMBERS)} {safe(EXPLAINED)}</p></section>'
    )


def _answers(record: Record, arrays: Arrays, some: bool) -> str:
    cards = f'<div><h3>Full precision</h3><div class="tokens">{reference_tokens(record.reference.tokens)}</div></div>'
    for index, lane in enumerate(record.lanes):
        about = (settings(lane), verdict(record, arrays, index).sentence, near_ties(lane), *remarks(lane))
        notes = "".join(f'<p class="mute">{safe(note)}</p>' for note in about if note)
        body = f"<h3>{safe(lane.label)}</h3>{notes}{_tokens(record, arrays, index)}"
        cards += f'<div class="lane-{record.number(index)}">{body}</div>'
    said = f"{SHADED} {expectation_sentence(record)}".strip()
    if some:
        said = f"Answers and figures are those of {TOGETHER} lanes: {BEST}. {said}"
    return f'<section><h2>Answers</h2><p class="mute">{safe(said)}</p><div class="answers">{cards}</div></section>'


def _tokens(record: Record, arrays: Arrays, index: int) -> str:
    lane: LaneRecord = record.lanes[index]
    if lane.status == "failed":
        return f'<p class="bad">{safe(lane.error or "failed")}</p>'
    kld, same = scores(arrays, index)
    parted = lane.metrics.first_divergence if lane.metrics else None
    texts = spans_of(record, record.reference), spans_of(record, lane)
    return f'<div class="tokens">{lane_tokens(*texts, kld, same, parted)}</div>'


def _figures(record: Record, arrays: Arrays) -> str:
    told = "".join(
        f'<figure tabindex="0">{caption(view)}{svg(figure)}</figure>'
        for view in VIEWS.values()
        if (figure := view.draw(record, arrays)) is not None
    )
    return f"<section><h2>Figures</h2>{told}</section>"


def _again(record: Record) -> str:
    head, rows = perplexity_rows(record)
    titles = "".join(f'<th scope="col">{safe(name)}</th>' for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{safe(value)}</td>' for value in row)}</tr>" for row in rows)
    return (
        f"<section><h2>llama-perplexity block</h2>{SCROLL}<table><thead><tr>{titles}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div></section>"
        f"<section><h2>Reproduce</h2><pre>{safe(command(record))}</pre>"
        f'<p class="mute">{safe(conditions(record))}</p></section>'
    )
