"""The run's card as a PNG, which is what other sites show beside a link: its SVG, drawn shape by shape."""

import io
import re
from functools import cache
from xml.etree import ElementTree

from PIL import Image, ImageDraw, ImageFont

from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.export.card import HEIGHT, WIDTH, card

FONTS = {True: ("DejaVuSans-Bold.ttf", "LiberationSans-Bold.ttf", "Arial Bold.ttf"), False: ("DejaVuSans.ttf",)}
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def png_card(record: Record, arrays: Arrays, link: str) -> bytes:
    """The card of a run, 1200 x 630."""
    image = Image.new("RGB", (WIDTH, HEIGHT))
    draw = ImageDraw.Draw(image)
    for element in ElementTree.fromstring(card(record, arrays, link)):  # our own markup, whose texts are escaped
        _draw(draw, element)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _draw(draw: ImageDraw.ImageDraw, element: ElementTree.Element) -> None:
    """The shapes that a card has, and no others."""
    kind, said = element.tag.rpartition("}")[2], element.attrib
    fill, line = (None if said.get(name, "none") == "none" else said[name] for name in ("fill", "stroke"))
    if kind == "rect":
        draw.rectangle((0, 0, float(said["width"]), float(said["height"])), fill=fill)
    elif kind == "circle":
        x, y, r = (float(said[name]) for name in ("cx", "cy", "r"))
        draw.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=line)
    elif kind == "path":
        _path(draw, said["d"], fill, line, round(float(said.get("stroke-width", 1))))
    elif kind == "text":
        font = _font(int(said["font-size"]), int(said.get("font-weight", 400)) >= 600)
        place, anchor = (float(said["x"]), float(said["y"])), ANCHORS[said.get("text-anchor", "start")]
        draw.text(place, element.text or "", fill=fill, font=font, anchor=anchor)
    else:
        raise TypeError(f"a card has no <{kind}>")


def _path(draw: ImageDraw.ImageDraw, told: str, fill: str | None, line: str | None, width: int) -> None:
    for part in filter(None, told.split("M")):
        across = re.fullmatch(r"(\S+) (\S+)H(\S+)", part)
        numbers = [float(n) for n in ((*across.groups(), across[2]) if across else _NUMBER.findall(part))]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        if fill and len(points) > 2:
            draw.polygon(points, fill=fill)
        elif line:
            draw.line(points, fill=line, width=max(1, width))


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """A font with many scripts where the system has one, else the one that Pillow brings."""
    for name in FONTS[bold]:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)
