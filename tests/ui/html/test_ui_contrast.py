"""What is said in colour can be read: WCAG's 4.5 to 1 for every badge, light and dark."""

import re
from pathlib import Path

import pytest

import ui
from ui.export.card import GROUND, TONES
from ui.html.colors import rgb

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


def colors(style: str) -> list[dict[str, str]]:
    """The colours by name, light and dark; dark ones are those the light ones are replaced with."""
    blocks = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+);", block)) for block in re.findall(r"\{([^{}]*)\}", style)]
    light, dark = [block for block in blocks if {"card", "good"} <= set(block)]
    return [light, light | dark]


PAGE, REPORT = ((FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "export/report.css"))
BADGES = re.findall(r"\.badge\.([a-z]+) \{ color: var\(--([a-z-]+)\); background: var\(--([a-z-]+)\)", PAGE)


def test_the_measure_itself():
    assert round(contrast("#fff", "#000000"), 2) == 21 and round(contrast("#777777", "#fff"), 2) == 4.48


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_badge_can_be_read(theme):
    known = colors(PAGE)[theme]
    assert {tone for tone, *_ in BADGES} == {"good", "warn", "bad", "quiet"}
    found = {tone: contrast(known[ink], known[ground]) for tone, ink, ground in BADGES}
    assert min(found.values()) >= LEAST, found


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_tones_on_cards_and_in_reports_can_be_read(theme):
    for style in (PAGE, REPORT):
        known = colors(style)[theme]
        found = {tone: contrast(known[tone], known["card"]) for tone in ("good", "warn", "bad", "mute", "accent")}
        assert min(found.values()) >= LEAST, found
    assert min(contrast(tone, GROUND) for tone in TONES.values()) >= LEAST
