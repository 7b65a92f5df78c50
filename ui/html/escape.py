"""Text of people and models as HTML: everything is escaped here, tokens are coloured here.

gr.HTML sets its value by innerHTML and its templates can evaluate ``${...}``, so nothing reaches it unescaped, and
``$``, ``{`` and the backtick become entities as well.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence

from ui.html.pieces import END, Span

SHADES = 12  # shades of the token scale beside plain
FULL_SHADE_NATS = 2.0
# Control characters can hide text, directional overrides can reorder it.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")  # the wide forms count in Japanese settings
_PERCENT = re.compile(r"(?<=\d) ?%")
_TEMPLATE = str.maketrans({"$": "&#36;", "{": "&#123;", "}": "&#125;", "`": "&#96;"})


def safe(text: object) -> str:
    """Text for the inside of an element or a quoted attribute."""
    return html.escape(_INVISIBLE.sub("\ufffd", str(text)), quote=True).translate(_TEMPLATE)


def bare(text: object) -> str:
    """Text for scripts, which put it into the page as text and never as markup."""
    return _INVISIBLE.sub("\ufffd", str(text))


def prose(text: object) -> str:
    """Sentences for the inside of an element, every percent sign on the line of its number."""
    return _PERCENT.sub("\u00a0%", safe(text))


def plot_safe(text: object) -> str:
    """Text for Plotly labels, which read a few HTML tags and entities."""
    return html.escape(_INVISIBLE.sub("\ufffd", str(text)), quote=False)


def cell_safe(value: object) -> object:
    """A cell of a table for spreadsheets: a text they would run as a formula is quoted with an apostrophe."""
    return "'" + value if isinstance(value, str) and _FORMULA.match(value) else value


def shorten(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def visible(piece: str) -> str:
    """A token's text with its blanks shown."""
    return piece.strip(" ").replace("\n", "⏎") or "␣"


def span_text(span: Span) -> str:
    """A span's text with its blanks shown."""
    return visible(span.text) if span.text else END


def shade(kld: float | None) -> int:
    """Shade of a token, 0 (plain) to SHADES: the square root spreads the small values where differences matter."""
    if kld is None or not math.isfinite(kld) or kld <= 0:
        return 0
    return min(SHADES, round(SHADES * math.sqrt(kld / FULL_SHADE_NATS)))


def token(text: str, classes: Sequence[str], title: str = "", at: Sequence[int] = ()) -> str:
    """A span of tokens as an element; without classes, title and numbers bare text. Numbered ones can be selected."""
    body = safe(text)
    names = " ".join(filter(None, classes))
    if not names and not title and not at:
        return body
    named = f' class="{names}"' if names else ""
    titled = f' title="{safe(title)}"' if title else ""
    numbered = f' data-t="{" ".join(map(str, at))}"' if at else ""
    return f"<i{named}{titled}{numbered}>{body}</i>"


def reference_tokens(pieces: Sequence[str]) -> str:
    """The reference's text while it arrives."""
    return "".join(map(safe, pieces))


def numbered_tokens(found: Sequence[Span]) -> str:
    """The reference's text once it is whole: every token can be selected."""
    return "".join(token(span.text, (), at=span.tokens) for span in found)


def lane_tokens(
    same: Sequence[Span],
    own: Sequence[Span],
    kld: Sequence[float],
    same_top: Sequence[bool],
    first_divergence: int | None,
    titles: Sequence[str] = (),
) -> str:
    """A lane's tokens twice over: the reference's (class s) and its own (class o), one element where they agree.

    Token i was scored at position i - 1; a character of several tokens is as bright as the worst of them. A lane's own
    tokens are coloured up to the first divergence; after it lane and reference no longer continue the same text and
    nothing compares them. The result only ever grows at its end, so that a stream of it costs what is new.
    """

    def colors(tokens: Iterable[int]) -> tuple[str, str]:
        scored = [i for i in tokens if 0 < i <= len(kld)]
        bright = max((shade(kld[i - 1]) for i in scored), default=0)
        flipped = any(not same_top[i - 1] for i in scored if i <= len(same_top))
        return f"k{bright}" if bright else "", "f" if flipped else ""

    def titled(tokens: Iterable[int]) -> tuple[str, list[int]]:
        at = [i for i in tokens if i < len(titles) and titles[i]]
        return "\n\n".join(titles[i] for i in at), at

    parts = []
    followed = same[-1].last if same else -1
    for span, is_own in sorted([(s, False) for s in same] + [(s, True) for s in own], key=lambda s: (s[0].last, s[1])):
        if first_divergence is None or span.last < first_divergence:
            if not is_own:
                parts.append(token(span.text, colors(span.tokens), *titled(span.tokens)))
            elif span.last > followed:
                parts.append(token(span.text, ("o",)))
        elif not is_own:
            parts.append(token(span.text, ("s", *colors(span.tokens)), *titled(span.tokens)))
        elif first_divergence in span.tokens:
            till = range(span.first, first_divergence + 1)
            parts.append(token(span.text or END, ("o", *colors(till), "d"), *titled(till)))
        else:
            parts.append(token(span.text or END, ("o",)))
    return "".join(parts)


def strip(kld: Sequence[float]) -> str:
    """A bar a scored position, as high as its KLD; grows at its end only."""
    return "".join(f'<b style="--h:{100 * math.sqrt(min(1, _finite(k) / FULL_SHADE_NATS)):.0f}"></b>' for k in kld)


def _finite(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0
