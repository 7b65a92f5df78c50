"""Along the answer: lanes by tokens, the span that is brushed there, its numbers, and the way to the worst tokens.

js/along.js paints the strips and fills in the numbers, of the whole answer or of the span.
"""

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.along_data import MOST, along_data, as_json
from ui.html.escape import FULL_SHADE_NATS, SHADES, safe
from ui.html.glossary import hint, term
from ui.html.numbers import plural

FILTERS = (
    ("", "all"),
    ("flip", "flips"),
    ("sure", "flips, not near a tie"),
    ("digits", "digits"),
    ("structure", "structure"),
    ("names", "names"),
)
HINT = (
    "Drag over tokens here, in a text or in a figure: numbers, verdicts and maps are of these then. "
    "Shift and the arrow keys do the same in a text; Escape is the whole answer again."
)
NUMBERS = (("kld", hint("KLD", "KLD")), ("flips", hint("flips", "flips")), ("size", term("own bytes")))


def along_html(record: Record, arrays: Arrays, hint: str = HINT) -> str:
    """Of the lanes that are drawn; nothing where none was scored. ``hint``: how one brushes here."""
    lanes = [
        at for at, lane in enumerate(record.lanes) if lane.status == "done" and len(arrays.get(f"lane/{at}/kld", ()))
    ]
    scored = sum(len(arrays[f"lane/{at}/kld"]) for at in lanes)
    if not lanes:
        return ""
    title = '<h2 id="along-title">Along the answer</h2>'
    if scored > MOST:
        said = f"Of {plural(scored, 'scored position')} in all lanes; up to {MOST:,} can be brushed here."
        return f'<section class="along card" aria-labelledby="along-title">{title}<p class="muted">{said}</p></section>'
    rows = "".join(_row(record, at, place) for place, at in enumerate(lanes, 2))
    heads = "".join(f'<span class="num">{name}</span>' for _, name in NUMBERS)
    return (
        f'<section class="along card" aria-labelledby="along-title"><div class="along-top">{title}'
        f'<p class="along-said" role="status"></p></div><p class="muted">{hint}</p>'
        f'<div class="along-grid" style="--rows:{len(lanes)}"><span></span><span class="along-scale">'
        f"{_scale()}</span>{heads}<span></span>{rows}{_track()}</div>"
        f'<p class="along-words" hidden></p>{_controls(record, lanes)}'
        f'<p class="along-why" role="status"></p></section>'
        f'<div id="along-data" hidden>{as_json(along_data(record, arrays))}</div>'
    )


def _row(record: Record, at: int, place: int) -> str:
    """A lane's name, its strip, and its numbers, which js/along.js fills in; ``place``: its row of the grid."""
    numbers = "".join(f'<b class="num" data-number="{name}"></b>' for name, _ in NUMBERS)
    return (
        f'<div class="along-row lane-{record.number(at)}" data-of="{at}" style="--row:{place}">'
        f'<span class="name"><i class="swatch"></i>'
        f"{safe(record.lanes[at].label)}</span>"
        f'<canvas class="along-strip" data-strip="{at}" aria-hidden="true"></canvas>'
        f'{numbers}<span class="badge quiet" data-number="verdict"></span></div>'
    )


def _track() -> str:
    """What stands over the strips and takes the pointer; the fields below do the same by keyboard."""
    marks = '<i class="along-token"></i><i class="along-brush" hidden></i>'
    return f'<div class="along-track" aria-hidden="true">{marks}</div>'


def _scale() -> str:
    steps = "".join(f'<span class="k{shade}"></span>' for shade in range(SHADES + 1))
    return (
        f'<span class="along-key"><span class="steps">{steps}</span>KLD, to {FULL_SHADE_NATS:g} nats</span>'
        '<span class="along-key flips"><i></i>flip</span>'
    )


def _controls(record: Record, lanes: list[int]) -> str:
    last = len(record.reference.token_ids) - 1
    fields = "".join(
        f'<label>{name}<input type="number" id="span-{which}" min="0" max="{last}" step="1"></label>'
        for which, name in (("first", "Tokens"), ("last", "to"))
    )
    options = "".join(f'<option value="{at}">{safe(record.lanes[at].label)}</option>' for at in lanes)
    kinds = "".join(f'<option value="{name}">{safe(shown)}</option>' for name, shown in FILTERS)
    return (
        f'<div class="along-controls"><div class="along-span">{fields}'
        '<button type="button" class="plain-button" data-span="clear" disabled>Whole answer</button></div>'
        f'<div class="along-worst"><label>Worst of<select id="worst-lane">{options}</select></label>'
        f'<label>among<select id="worst-kind">{kinds}</select></label>'
        '<button type="button" class="plain-button" data-worst="-1">Before <kbd>p</kbd></button>'
        '<button type="button" class="plain-button" data-worst="1">Next worst <kbd>n</kbd></button></div></div>'
    )
