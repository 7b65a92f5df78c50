"""A run as one HTML file that opens anywhere: the answer, all formats at a glance, texts, what was captured, and the
run itself inside. Nothing is fetched; selecting a token and brushing some work as on the page, by its own scripts."""

from collections.abc import Mapping
from pathlib import Path

from kvq_core.analysis.expected import expectation_sentence
from kvq_core.record.arrays import Arrays
from kvq_core.record.carried import CHARSET, MOST_BYTES, sealed
from kvq_core.record.fields import Record
from kvq_core.record.subset import BEST, TOGETHER, drawn_of
from ui.export.answer import answer_html
from ui.export.card import title
from ui.export.document import ascii_script, ascii_sheet, ascii_text, document
from ui.export.hover import marks_json
from ui.export.reproduce import command, conditions
from ui.export.selected import SELECTED, Selected
from ui.export.svg import svg
from ui.export.views import Picture, caption
from ui.figures import bit_map, error_inside, format_grid
from ui.html.along import along_html
from ui.html.cards import finished_cards
from ui.html.escape import numbered_tokens, safe, token
from ui.html.glossary import glossary_html
from ui.html.pieces import END, spans_of
from ui.html.reading import CACHES, REPLAY, TINTS, WORDS, caches, laid, scrubber, words
from ui.html.reading_data import scored_lanes
from ui.html.scripts import ALONE_JS
from ui.html.sheet import OF_RUNS, plain_css
from ui.html.tables import COLUMNS, perplexity_rows, scorecard
from ui.html.verdict import EXPLAINED, verdict
from ui.selection import Selection, last_token, start
from ui.words.answer import answer_line

NUMBERS = (
    "Every lane decodes twice: forced along the reference's tokens, from which all distances come, and free, which is "
    "the text shown. KLD: how far the next-token distribution is from the reference's, in nats a token. Flips: "
    "positions where the most probable token changed. Bits and size are counted from the tensors held, metadata and "
    "full-precision windows included."
)
GRID = Picture(
    "Mean KLD by format of keys and of values",
    "One scale, nats; a cell a lane.",
    lambda record, _: format_grid(record),
)
RANK = 5  # of the query subspace, as the view begins with it
CAPTURED = (
    SELECTED["scores"],
    SELECTED["spectra"],
    Selected(
        "Key error inside the query subspace",
        "Share of each lane's squared key error in the top directions of the prompt's queries.",
        lambda record, arrays, at: error_inside(record, arrays, at.layer, RANK),
    ),
    Selected(
        "Bits of every key",
        "Layers down, tokens to the right.",
        lambda record, arrays, at: bit_map(record, arrays, "key", "layers", at.token),
    ),
)
CELLS, FEW_CELLS = 300, 30  # of a figure that say what they hold; the fewer where the run takes the room
BRUSHED = "Drag over tokens here or in a text: numbers and verdicts are of these. Escape is the whole answer again."
BEFORE, AFTER = 5, 40  # tokens of a line before the first difference, and from it on
SWITCHES = {
    "view-text": ("Text", ("Own tokens", "Same tokens")),
    "view-color": ("Colour", ("KLD", "Flips")),
}  # read by the stylesheet alone, as the page's own
INSIDE = "This page carries the run: drop it on KVQ Explorer, or python -m kvq_core open FILE."


def filed(record: Record, arrays: Arrays, files: Mapping[str, bytes], link: str = "") -> bytes:
    """The page with its run inside, ``files`` as the store holds them; of a run that does not fit in MOST_BYTES the
    page alone, which says so."""
    run = sealed(files)
    for cells in (CELLS, FEW_CELLS):
        markup = page(record, arrays, INSIDE, link, cells).encode("ascii")
        if len(markup) + len(run) <= MOST_BYTES:
            return markup + run
    size = sum(map(len, files.values()))
    without = f"The run, {size / 1e6:.1f} MB, is not in this page, which holds {MOST_BYTES / 1e6:.0f} MB at most."
    return page(record, arrays, without, link).encode()


def page(record: Record, arrays: Arrays, kept: str = "", link: str = "", cells: int = CELLS) -> str:
    """The whole document, ASCII; ``kept``: what it says of the run inside; ``link``: the run's, where there is one;
    ``cells`` of a figure that say what they hold. Every text of prompt, model or label is escaped."""
    drawn, own = drawn_of(record, arrays)
    at = start(drawn, own)
    parts = (
        answer_html(record, arrays, served=False),
        _card("grid", "Keys against values", picture(GRID, record, arrays, cells)),
        _lines(drawn, own),
        f'<div id="along">{along_html(drawn, own, BRUSHED)}</div>',
        _captures(drawn, own, at, cells),
        _reading(drawn, own, at),
        _texts(record, drawn, own),
        _scores(record, arrays),
        _again(record, kept, link),
    )
    body = (
        f'<body class="gradio-container embed file" data-token="{at.token}"><main id="right" class="prose">'
        f"{''.join(parts)}</main>{glossary_html()}</body>"
    )
    here = Path(__file__)
    sheet = ascii_sheet(plain_css(OF_RUNS) + here.with_name("page.css").read_text(encoding="utf-8"))
    script = ascii_script(ALONE_JS + here.with_name("figure.js").read_text(encoding="utf-8"))
    return ascii_text(document(title(record), answer_line(record, arrays), sheet, body, script, CHARSET))


def picture(view: Picture, record: Record, arrays: Arrays, cells: int) -> str:
    """A figure with what its marks say under the pointer and the arrow keys; nothing where a run has nothing for it."""
    figure = view.draw(record, arrays)
    if figure is None:
        return ""
    data = f'<script type="application/json" class="marks">{marks_json(figure, cells)}</script>'
    return f'<figure>{caption(view)}{svg(figure)}{data}<p class="muted said" aria-live="polite"></p></figure>'


def _card(name: str, title: str, inside: str, about: str = "") -> str:
    """A part of the page; nothing where there is nothing inside."""
    said = f'<p class="muted">{safe(about)}</p>' if about else ""
    head = f'<h2 id="{name}-title">{safe(title)}</h2>'
    return f'<section class="card" aria-labelledby="{name}-title">{head}{said}{inside}</section>' if inside else ""


def _lines(record: Record, arrays: Arrays) -> str:
    """Every answer in a line: from shortly before the first token that differs from full precision's."""
    begins = numbered_tokens(spans_of(record, record.reference)[:AFTER])
    lines = f'<li><span class="name">Full precision</span><span class="line tokens">{begins}</span></li>'
    for index, lane in enumerate(record.lanes):
        found = verdict(record, arrays, index)
        badge = f'<span class="badge {found.tone}" data-number="verdict">{safe(found.word)}</span>'
        name = f'<span class="name"><i class="swatch"></i>{safe(lane.label)}</span>'
        line = f'<span class="line tokens">{_line(record, index)}</span>'
        lines += f'<li class="lane-{record.number(index)}" data-of="{index}">{name}{line}{badge}</li>'
    return _card("lines", "Answers", f'<ol class="lines">{lines}</ol>', "Red bar: the first token that differs.")


def _line(record: Record, index: int) -> str:
    lane = record.lanes[index]
    if lane.status == "failed":
        return f'<span class="error">{safe(lane.error or "failed")}</span>'
    parted = lane.metrics.first_divergence if lane.metrics else None
    found = spans_of(record, lane)
    if parted is None:
        return f'<span class="muted">the same text</span> {numbered_tokens(found[:AFTER])}'
    first = next((at for at, span in enumerate(found) if span.last >= parted), len(found))
    before, after = found[max(0, first - BEFORE) : first], found[first : first + AFTER]
    other = "".join(token(span.text or END, ("d",) if span is found[first] else ()) for span in after)
    return f'<span class="muted">token {parted}</span> {numbered_tokens(before)}{other}'


def _captures(record: Record, arrays: Arrays, at: Selection, cells: int) -> str:
    shown = "".join(picture(each.of(at), record, arrays, cells) for each in CAPTURED)
    where = f"Layer {at.layer}, query head {at.head}, KV head {at.kv_head(record)}, token {at.token}; the whole answer."
    return _card("captured", "Inside the cache", f'<div class="pictures">{shown}</div>' if shown else "", where)


def _reading(record: Record, arrays: Arrays, at: Selection) -> str:
    lanes = scored_lanes(record)
    if not lanes or last_token(record) < 1:
        return ""
    inside = (
        f'<div id="reading">{scrubber(record)}{words(record, lanes)}<p id="word-said" class="muted"></p>'
        f'<h3>{REPLAY}</h3><p class="muted">{CACHES}</p>{caches(record, lanes)}'
        f"{laid(record, arrays, at.layer, at.head, lanes)}</div>"
    )
    return _card("words", f"{WORDS}, layer {at.layer}, query head {at.head}", inside, TINTS)


def _texts(record: Record, drawn: Record, arrays: Arrays) -> str:
    shown = finished_cards(drawn, arrays, titled=0).replace('tabindex="0"', 'tabindex="0" role="group" data-tokens')
    some = f"{TOGETHER} lanes: {BEST}." if drawn is not record else ""
    prompt = f'<details><summary>Prompt</summary><pre tabindex="0">{safe(record.question)}</pre></details>'
    switches = "".join(_switch(name, *of) for name, of in SWITCHES.items())
    inside = f'{prompt}<div id="toolbar">{switches}</div><div id="cards">{shown}</div>'
    return _card("texts", "Texts", inside, f"{some} {expectation_sentence(record)}".strip())


def _switch(name: str, legend: str, choices: tuple[str, ...]) -> str:
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{choice}"{" checked" * (choice == choices[0])}>'
        f"{choice}</label>"
        for choice in choices
    )
    return f'<fieldset id="{name}"><legend>{legend}</legend>{buttons}</fieldset>'


def _scores(record: Record, arrays: Arrays) -> str:
    columns = [column for column in COLUMNS if column.name not in ("lane", "verdict")]
    head = "".join(f'<th scope="col">{safe(column.title)}</th>' for column in columns)
    tones = ["", *(verdict(record, arrays, index).tone for index in range(len(record.lanes)))]
    rows = ""
    for row, tone in zip(scorecard(record, arrays)[-len(tones) :], tones, strict=True):
        word = f'<td class="{tone}">{safe(row["verdict"])}</td>'
        cells = "".join(f"<td>{safe(column.shown(row[column.name]))}</td>" for column in columns)
        rows += f'<tr><th scope="row">{safe(row["lane"])}</th>{word}{cells}</tr>'
    table = _table(f'<th scope="col">lane</th><th scope="col">verdict</th>{head}', rows)
    return _card("scores", "Scorecard", f'{table}<p class="muted">{safe(NUMBERS)} {safe(EXPLAINED)}</p>')


def _table(head: str, rows: str) -> str:
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="plain"><thead><tr>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _again(record: Record, kept: str, link: str) -> str:
    """What computes the run again, on what it was computed, and where it lies."""
    env = record.environment
    facts = (
        f"Run {record.id}",
        record.created.replace("T", " "),
        f"{env.device} {env.dtype.removeprefix('torch.')}",
        *filter(None, [env.weights_note]),
        f"{env.layers} layers, {env.query_heads} query and {env.kv_heads} KV heads of {env.head_dim}",
        ", ".join(f"{name} {version}" for name, version in env.versions.items()),
    )
    titles, lines = perplexity_rows(record)
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in titles)
    rows = "".join(f"<tr>{''.join(f'<td>{safe(value)}</td>' for value in row)}</tr>" for row in lines)
    block = f"<details><summary>llama-perplexity block</summary>{_table(head, rows)}</details>" if rows else ""
    found = f'<p><a href="{safe(link)}">{safe(link)}</a></p>' if link else ""
    inside = (
        f'<p class="muted">{safe(" · ".join(facts))}</p>{found}<p class="muted">{safe(kept)}</p>'
        f'<pre tabindex="0">{safe(command(record))}</pre><p class="muted">{safe(conditions(record))}</p>{block}'
    )
    return _card("again", "Reproduce", inside)
