"""One figure of a run as a page of its own, for an iframe or a project's site: the report's picture, and a small script
that says what is under the pointer or, with the arrow keys, at one mark after the other. Nothing is fetched."""

from pathlib import Path

from kvq_core.errors import SpecError, excerpt
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from kvq_core.record.subset import drawn_of
from ui.export.card import title
from ui.export.document import document, style
from ui.export.framed import FRAMED, framed_view, sheet
from ui.export.hover import marks_json
from ui.export.selected import SELECTED, Asked, place_of
from ui.export.svg import svg
from ui.export.views import VIEWS, caption
from ui.html.escape import safe
from ui.html.scripts import FRAME_JS
from ui.words.answer import answer_line

MOST_BYTES = 400_000
NAMES = (*VIEWS, *SELECTED, *FRAMED)


def embed(record: Record, arrays: Arrays, view: str, link: str = "", at: Asked | None = None, lane: str = "") -> str:
    """The whole document; ``at``: see ``place_of``; ``lane``: the label of the one whose words are shown. Raises
    SpecError for a view there is not, or that the run has nothing for."""
    if view not in NAMES:
        raise SpecError(f"view = {excerpt(view)} is not allowed; give one of {', '.join(NAMES)}.")
    if view in FRAMED:
        body = framed_view(record, arrays, view, place_of(record, arrays, at or {}), lane)
        page = _document(record, arrays, view, link, body, FRAME_JS, sheet())
    else:
        page = _document(record, arrays, view, link, *_figure(record, arrays, view, at or {}))
    if (size := len(page.encode())) > MOST_BYTES:
        most = f"a frame at most {MOST_BYTES / 1000:.0f}"
        raise SpecError(f"The view {view} of run {record.id} takes {size / 1000:,.0f} kB, {most}.")
    return page


def _figure(record: Record, arrays: Arrays, view: str, at: Asked) -> tuple[str, str]:
    """The picture with what its marks say, and the script that says it."""
    picture = VIEWS.get(view) or SELECTED[view].of(place_of(record, arrays, at))
    figure = picture.draw(*drawn_of(record, arrays))
    if figure is None:
        raise SpecError(
            f"Run {record.id} has nothing for the view {view}{picture.where}: its captures are off or of others, or no "
            "lane finished."
        )
    data = f'<script type="application/json" class="marks" id="marks">{marks_json(figure)}</script>'
    return f"{caption(picture)}{svg(figure)}{data}", Path(__file__).with_name("figure.js").read_text(encoding="utf-8")


def _document(record: Record, arrays: Arrays, view: str, link: str, body: str, script: str, sheet: str = "") -> str:
    source = f'<a href="{safe(link)}" target="_blank" rel="noopener">{safe(title(record))}</a>'
    answer = answer_line(record, arrays)
    inside = (
        f'<body class="embed" data-view="{view}"><main><figure>{body}</figure>'
        f'<p class="mute" id="said" aria-live="polite">{safe(answer)}</p>'
        f'<p class="mute">{source if link else safe(title(record))} · run {record.id}</p></main></body>'
    )
    return document(title(record), answer, style() + sheet, inside, script)


def refusal_page(said: str) -> str:
    """The document in a figure's place, where it cannot be drawn."""
    inside = f'<body class="embed"><main><p class="mute">{safe(said)}</p></main></body>'
    return document("No figure", "", style(), inside, "")
