"""Figures as static SVG: where Plotly would put them, in valid XML, with nothing of a label taken for markup."""

import base64
import struct
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from tests.support.ui_record_factory import make_run
from ui.export.svg import png, svg
from ui.figures import damage_grid, distortion_rate, effective_rank, kld_strips, score_map, stored_bytes
from ui.html.colors import MARK, SEQUENTIAL, at, rgb

NS = "{http://www.w3.org/2000/svg}"
EVIL = "<b onload=x>&amp;</svg>"


def parsed(figure):
    return ElementTree.fromstring(svg(figure))


def texts(drawn):
    return ["".join(text.itertext()) for text in drawn.iter(f"{NS}text")]


def decoded(raw):
    """Palette and rows of codes of a PNG that ``png`` wrote."""
    chunks, at_byte = {}, 8
    while at_byte < len(raw):
        (size,) = struct.unpack(">I", raw[at_byte : at_byte + 4])
        name, data = raw[at_byte + 4 : at_byte + 8], raw[at_byte + 8 : at_byte + 8 + size]
        assert struct.unpack(">I", raw[at_byte + 8 + size : at_byte + 12 + size])[0] == zlib.crc32(name + data)
        chunks[name], at_byte = data, at_byte + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return chunks[b"PLTE"], rows[:, 1:]


@pytest.fixture(scope="module")
def sample():
    return make_run(3, labels=(f"A {EVIL}", "Two bits", "Three"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda r, a: kld_strips(r, a, 0),
        lambda r, a: distortion_rate(r, a, "kld"),
        lambda r, a: stored_bytes(r),
        lambda r, a: damage_grid(r, a, "relative", "key", 0, 0),
        lambda r, a: score_map(r, a, 0, 0),
        lambda r, a: effective_rank(r, a, 0),
    ],
    ids=["bars", "points", "stacked", "grid", "map", "lines"],
)
def test_the_pages_figures_are_drawn_inside_their_frame(sample, draw):
    figure = draw(*sample)
    drawn = parsed(figure)
    width, height = map(float, drawn.attrib["viewBox"].split()[2:])
    for element in (*drawn.iter(f"{NS}rect"), *drawn.iter(f"{NS}image")):
        x, y, w, h = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
        assert -1 <= x <= x + w <= width + 1 and -1 <= y <= y + h <= height + 1
    for circle in drawn.iter(f"{NS}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width and 0 <= float(circle.attrib["cy"]) <= height
    assert drawn.attrib["aria-label"] == figure.layout.meta["label"]
    assert not [e for e in drawn.iter() if any(name.startswith("on") for name in e.attrib)]
    said = [text for text in texts(drawn) if text.startswith("A ")]
    assert all(text.startswith(f"A {EVIL}"[: len(text) - 4]) for text in said)


def test_a_layer_is_underlined_where_it_stands_and_heads_are_whole_numbers(sample):
    record, arrays = sample
    layers, heads = record.environment.layers, record.environment.kv_heads
    constant = {"mean/key_pre": torch.zeros(layers, heads), "centred/key_pre": torch.ones(layers, heads, 8)}
    constant["mean/key_pre"][2] = 50
    figure = damage_grid(record, arrays | constant, "relative", "key", 0, 0)
    drawn = parsed(figure)
    lines = [path for path in drawn.iter(f"{NS}path") if path.attrib.get("stroke") == MARK]
    images = list(drawn.iter(f"{NS}image"))
    assert len(lines) == len(images) == len(record.lanes)
    for line, image in zip(lines, images, strict=True):
        left, top, width, height = (float(image.attrib[name]) for name in ("x", "y", "width", "height"))
        (x0, y0), (x1, y1) = (map(float, point.split()) for point in line.attrib["d"][1:].split("L"))
        cell = width / record.environment.layers
        assert left + 2 * cell < x0 < x1 < left + 3 * cell and top + height < y0 == y1 < top + height + 8
    assert "0.5" not in texts(drawn)


def test_rows_of_a_map_stand_at_their_names_and_bands_between_their_lines():
    figure = go.Figure(go.Heatmap(z=[[1, 2], [3, 4]], y=["one", "other"], coloraxis="coloraxis"))
    figure.update_layout(coloraxis={"colorscale": [[0, "#ffffff"], [1, "#000000"]], "cmin": 0, "cmax": 4})
    figure.update_yaxes(autorange="reversed")
    drawn = parsed(figure)
    image = next(drawn.iter(f"{NS}image"))
    top, height = (float(image.attrib[name]) for name in ("y", "height"))
    names = {text.text: float(text.attrib["y"]) for text in drawn.iter(f"{NS}text") if text.text in ("one", "other")}
    assert top < names["one"] < top + height / 2 < names["other"] < top + height
    lines = [{"x": [0, 1], "y": [at, at], "mode": "lines", "line": {"width": 0}} for at in (1, 3)]
    figure = go.Figure([go.Scatter(lines[0]), go.Scatter(lines[1], fill="tonexty", fillcolor="rgba(1,2,3,0.5)")])
    band = next(p for p in parsed(figure).iter(f"{NS}path") if p.attrib.get("fill") == "rgba(1,2,3,0.5)")
    assert band.attrib["d"].count("L") == 3 and band.attrib["d"].endswith("Z")


def test_points_stand_at_their_values():
    figure = go.Figure(go.Scatter(x=[0, 5, 10], y=[1, 10, 100], mode="markers", marker={"size": 4}))
    figure.update_layout(yaxis={"type": "log", "range": [0, 2]}, xaxis={"range": [0, 10]})
    marks = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in parsed(figure).iter(f"{NS}circle")]
    (x0, y0), (x1, y1), (x2, y2) = marks
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert x2 > x0 and y2 < y0


def test_bars_stack_and_start_at_zero():
    figure = go.Figure(
        [go.Bar(y=["a", "b"], x=[1, 2], orientation="h"), go.Bar(y=["a", "b"], x=[3, 1], orientation="h")]
    )
    figure.update_layout(barmode="stack", showlegend=False)
    boxes = [e.attrib for e in parsed(figure).iter(f"{NS}rect")]
    first, second, third, fourth = ((float(b["x"]), float(b["width"])) for b in boxes)
    assert first[0] == second[0] and third[0] == pytest.approx(first[0] + first[1], abs=0.2)
    assert third[1] == pytest.approx(3 * first[1], abs=0.5) and fourth[1] == pytest.approx(first[1], abs=0.5)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_heatmaps_cells_keep_their_values_and_places(reverse):
    z = np.array([[0.0, 1.0, 2.0], [2.0, 4.0, 0.0]])
    figure = go.Figure(go.Heatmap(z=z, coloraxis="coloraxis"))
    figure.update_layout(coloraxis={"cmin": 0, "cmax": 4, "colorscale": list(SEQUENTIAL)})
    if reverse:
        figure.update_yaxes(autorange="reversed")
    image = next(parsed(figure).iter(f"{NS}image"))
    palette, codes = decoded(base64.b64decode(image.attrib["href"].split(",")[1]))
    assert codes.tolist() == [[round_down(v) for v in row] for row in (z if reverse else z[::-1])]
    assert tuple(palette[:3]) == (255, 255, 255) and tuple(palette[-3:]) == rgb(at(SEQUENTIAL, 1.0))


def round_down(value):
    return int(value / 4 * 255)


def test_a_png_is_one_byte_a_cell():
    palette, codes = decoded(png(np.arange(6, dtype=np.uint8).reshape(2, 3), SEQUENTIAL))
    assert codes.tolist() == [[0, 1, 2], [3, 4, 5]] and len(palette) == 768


def test_what_has_no_static_form_is_refused():
    with pytest.raises(TypeError, match="violin"):
        svg(go.Figure(go.Violin(x=["a"], y=[1])))
