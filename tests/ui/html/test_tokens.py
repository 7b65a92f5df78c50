"""One truth for the design: the page, its figures and what is taken away have their colours and sizes from the tokens,
and the lanes' hues stay apart for every reader."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import ui
from kvq_core.record.subset import part_of
from kvq_core.spec import MAX_LANES
from tests.support.ui_record_factory import make_run
from tests.ui.html.test_ui_contrast import contrast
from ui.export.card import card
from ui.export.page import page
from ui.export.svg import svg
from ui.figures import bits_by_length, distortion_rate, kld_strips, stored_bytes
from ui.figures.base import line_of
from ui.html.colors import LANES, lane_mark, rgb
from ui.html.scripts import PAGE_JS
from ui.html.sheet import css, properties
from ui.html.tokens import TOKENS, dark_of

FOLDER = Path(ui.__file__).parent
SHEETS = [FOLDER / "style.css", FOLDER / "reading.css", FOLDER / "export" / "plain.css"]
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB; the first is full colour vision.
VISION = {
    "trichromat": np.eye(3),
    "protanope": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranope": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanope": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of a colour as somebody sees it."""
    parts = np.array(rgb(color)) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = XYZ @ np.clip(np.asarray(seen) @ linear, 0, 1) / (0.95047, 1, 1.08883)
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_lanes_hues_stay_apart_and_can_be_seen(ground, vision):
    hues = getattr(TOKENS.lanes, ground)
    apart = [
        np.linalg.norm(lab(a, VISION[vision]) - lab(b, VISION[vision])) for a, b in itertools.combinations(hues, 2)
    ]
    assert len(hues) == 8 and min(apart) > 15
    assert min(contrast(hue, getattr(TOKENS, ground)["card"]) for hue in hues) >= 3


def test_every_lane_a_run_may_have_is_marked_unlike_the_others():
    marks = [lane_mark(number) for number in range(MAX_LANES)]
    assert len({(m.color, m.dash) for m in marks}) == len({(m.color, m.symbol) for m in marks}) == MAX_LANES
    assert len({(m.color, m.pattern) for m in marks}) == MAX_LANES
    style = css()
    assert all(f".lane-{number}" in style for number in (0, 7, 8, MAX_LANES - 1))


@pytest.mark.slow
def test_a_lane_keeps_its_mark_where_some_of_a_runs_lanes_are_drawn():
    record, arrays = make_run(lanes=12, scored=20, tokens=80)
    part, own = part_of(record, arrays, [1, 10])
    again, _ = part_of(part, own, [1])
    assert [part.number(0), part.number(1), again.number(0)] == [1, 10, 10]
    assert line_of(part, 1) == line_of(record, 10) and line_of(part, 1)["color"] == LANES[2]
    assert line_of(part, 1)["dash"] == "dash" and "dash" not in line_of(part, 0)
    assert kld_strips(part, own, 3).layout.annotations[1].font.color == LANES[2]
    assert distortion_rate(part, own, "kld").data[-1].marker.symbol == "square"
    assert stored_bytes(part).data[0].marker.pattern.shape == ("", "", "/", "/")
    drawn = svg(stored_bytes(part))
    assert '<pattern id="texture-0"' in drawn and "url(#texture-0)" in drawn
    assert 'stroke-dasharray="6 4"' in svg(bits_by_length(part))
    assert LANES[2] in card(part, own, "") and 'class="lane-10"' in page(part, own)


@pytest.mark.parametrize("sheet", SHEETS, ids=[sheet.name for sheet in SHEETS])
def test_stylesheets_take_colours_sizes_and_motion_from_the_tokens(sheet):
    text = sheet.read_text(encoding="utf-8")
    assert re.findall(r"#[0-9a-f]{3,8}\b(?=[^{}]*\})", text) == []
    assert re.findall(r"font-size: [0-9.]+|font: [0-9.]+px|border-radius: [1-9][0-9.]*px", text) == []
    assert re.findall(r"(?:transition|animation): [^;]*?(?<!\d)(?!0s)[0-9.]+m?s", text) == []
    known = set(re.findall(r"--([\w-]+):", css() + properties("{}")))
    used = set(re.findall(r"var\(--((?:text|space|radius|motion|hue)-[\w-]+)", text))
    assert used and used <= known


def test_python_draws_with_no_colour_of_its_own():
    for file in FOLDER.rglob("*.py"):
        found = re.findall(r'"#[0-9a-fA-F]{6}"', file.read_text(encoding="utf-8"))
        assert not found or file.name in ("theme.py", "sheet.py", "marks.py"), file


def test_both_grounds_have_every_token_and_the_browser_knows_both():
    assert list(TOKENS.light) == list(TOKENS.dark)
    told = json.loads(re.search(r"const DARK = (\{.*?\});", PAGE_JS)[1])
    assert told == dark_of() and set(TOKENS.lanes.light) <= set(told)
    assert all(told[one] == other for one, other in zip(TOKENS.lanes.light, TOKENS.lanes.dark, strict=True))
