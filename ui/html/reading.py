"""What a selected token reads: the prompt's words by the attention that a lane gains and loses there, and the caches as
they stood at every step. js/words.js tints the words, js/replay.js moves the steps."""

from kvq_core.analysis.looks import captured_indices
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.html.along_data import as_json
from ui.html.escape import safe
from ui.html.figure_menu import frame_menu
from ui.html.reading_data import reading_data, scored_lanes

WORDS, REPLAY = "Attention on the words", "The caches while this token was chosen"
MODES = (
    ("change", "what the lane gains and loses"),
    ("lane", "what the lane reads"),
    ("reference", "what full precision reads"),
)
TINTS = "Orange: the lane reads more there than full precision does; purple: less."
CACHES = "Keys above, values below, from the first token of the prompt on; more bits stand out more."
KEYS = "Arrow keys move the scrubber; p and n go to the worst tokens."


def reading_html(record: Record, arrays: Arrays, layer: int, head: int, lacks: str = "") -> str:
    """Of one layer and query head, plain where they were not looked at; nothing of a run without scored lanes.
    ``lacks``: why no frame would show the words as they are here."""
    lanes = scored_lanes(record)
    if not lanes or len(record.reference.token_ids) < 2:
        return '<p class="absent">No lane of this run was scored.</p>'
    looked = captured_indices(record, layer, head) is not None and "reference/attention_rows" in arrays
    return (
        f'<div id="reading">{scrubber(record)}{_titled(WORDS, frame_menu("words", WORDS, TINTS, lacks, looked))}'
        f"{words(record, lanes)}{_titled(REPLAY, frame_menu('replay', REPLAY, CACHES))}"
        f'<p class="muted">{CACHES} {KEYS}</p>{caches(record, lanes)}{laid(record, arrays, layer, head, lanes)}</div>'
    )


def _titled(title: str, menu: str) -> str:
    return f'<div class="slot"><h3 class="figure-title">{safe(title)}</h3>{menu}</div>'


def scrubber(record: Record) -> str:
    last = len(record.reference.token_ids) - 1
    return (
        '<div class="replay" role="group" aria-label="Replay of the answer">'
        '<button type="button" class="plain-button" data-replay="play">Play</button>'
        '<button type="button" class="plain-button" data-replay="-1" aria-label="One token back">‹</button>'
        '<button type="button" class="plain-button" data-replay="1" aria-label="One token on">›</button>'
        f'<label>Token<input type="range" id="replay-token" min="1" max="{last}" step="1"></label>'
        "<output></output></div>"
    )


def words(record: Record, lanes: list[int]) -> str:
    """The text, which js/words.js lays, and by which lane it is tinted."""
    options = "".join(f'<option value="{at}">{safe(record.lanes[at].label)}</option>' for at in lanes)
    modes = "".join(f'<option value="{name}">{shown}</option>' for name, shown in MODES)
    return (
        f'<div class="reading-controls"><label>Lane<select id="reading-lane">{options}</select></label>'
        f'<label>Tint by<select id="reading-mode">{modes}</select></label></div>'
        '<p class="reading-said" role="status"></p>'
        '<div class="tokens reading-text" tabindex="0" role="group" aria-label="Prompt and answer"></div>'
    )


def caches(record: Record, lanes: list[int]) -> str:
    rows = "".join(_row(record, at) for at in lanes)
    return f'<div class="replay-rows">{rows}</div><p class="muted replay-note"></p>'


def laid(record: Record, arrays: Arrays, layer: int, head: int, lanes: list[int]) -> str:
    """What is tinted and moved, as data."""
    return f'<div id="reading-data" hidden>{as_json(reading_data(record, arrays, layer, head, lanes))}</div>'


def _row(record: Record, at: int) -> str:
    return (
        f'<div class="replay-row lane-{record.number(at)}" data-of="{at}"><span class="name"><i class="swatch"></i>'
        f"{safe(record.lanes[at].label)}</span>"
        f'<canvas data-cache="{at}" role="img" aria-label="Bits of every token in the cache"></canvas>'
        f'<span class="replay-numbers"></span></div>'
    )
