"""What is said in colour can be read: WCAG's 4.5 to 1 for every badge, light and dark."""

import re
from pathlib import Path

import pytest

import ui
from ui.export.card import GROUND, TONES
from ui.html.colors import rgb
from ui.html.escape import SHADES
from ui.html.sheet import css
from ui.html.tokens import TOKENS

FOLDER = Path(ui.__file__).parent
LEAST = 4.5


def lightness(color: str) -> float:
    """Relative luminance, 0 .. 1, of ``#rgb`` or ``#rrggbb``."""
    whole = color if len(color) == 7 else "#" + "".join(2 * c for c in color[1:])
    parts = [part / 255 for part in rgb(whole)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((lightness(one), lightness(other)))
    return (high + 0.05) / (low + 0.05)


PAGE = (FOLDER / "style.css").read_text(encoding="utf-8")
GROUNDS = {"light": TOKENS.light, "dark": TOKENS.dark}
BADGES = re.findall(r"\.badge\.([a-z]+) \{ color: var\(--([a-z-]+)\); background: var\(--([a-z-]+)\)", PAGE)


def test_the_measure_itself():
    assert round(contrast("#fff", "#000000"), 2) == 21 and round(contrast("#777777", "#fff"), 2) == 4.48


@pytest.mark.parametrize("ground", GROUNDS)
def test_every_badge_can_be_read(ground):
    known = GROUNDS[ground]
    assert {tone for tone, *_ in BADGES} == {"good", "warn", "bad", "quiet"}
    found = {tone: contrast(known[ink], known[ground]) for tone, ink, ground in BADGES}
    assert min(found.values()) >= LEAST, found


def test_tokens_can_be_read_on_every_shade_of_both_grounds():
    found = re.findall(r"((?:\.dark )?\.k\d+)\{--ground:(#\w+);--ink:(#\w+)\}", css())
    assert len(found) == 2 * (SHADES + 1)
    assert {shade: ratio for shade, *pair in found if (ratio := contrast(*pair)) < LEAST} == {}


@pytest.mark.parametrize("ground", GROUNDS)
def test_tones_on_cards_can_be_read(ground):
    known = GROUNDS[ground]
    found = {tone: contrast(known[tone], known["card"]) for tone in ("good", "warn", "bad", "mute", "accent", "label")}
    assert min(found.values()) >= LEAST, found
    assert min(contrast(tone, GROUND) for tone in TONES.values()) >= LEAST
