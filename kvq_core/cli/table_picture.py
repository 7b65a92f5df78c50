"""The reference table as a picture: a row a lane, its mean KLD with the interval over prompts, a colour a model."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from kvq_core.studies.summary import is_wide
from kvq_core.studies.table import setting

WIDTH, LEFT, BITS, RIGHT = 860, 236, 58, 24
ROW, HEAD, TOP, BOTTOM = 17, 30, 58, 34
COLORS = ("#0b62c4", "#c2571a", "#2f8f4e", "#7a4fb5")
INK, MUTE, LINE, GROUND = "#1b1f24", "#5b6470", "#e3e6ea", "#ffffff"
LEAST = 1e-6  # nats: what lies below is drawn there


def picture(lines: Sequence[dict[str, Any]], caption: str) -> str:
    """An SVG of lanes as a study's summary has them, with keys ``model``, ``label``, ``kld_mean``, ``kld_low``,
    ``kld_high`` (nats), ``key_bits`` and ``value_bits``. ``caption`` says what was measured."""
    shown = [line for line in lines if line["kld_mean"] is not None]
    return "".join(_Picture(shown, caption).parts()) + "\n"


class _Picture:
    def __init__(self, shown: Sequence[dict[str, Any]], caption: str):
        self.caption = caption
        self.models = list(dict.fromkeys(line["model"] for line in shown))
        self.by_label: dict[str, dict[str, dict[str, Any]]] = {}
        for line in shown:
            self.by_label.setdefault(line["label"], {})[line["model"]] = line
        self.groups: dict[str, list[str]] = {}
        for label in sorted(self.by_label, key=self._loss):
            self.groups.setdefault(setting(label)[0], []).append(label)
        ends = [max(LEAST, value) for line in shown for value in _ends(line)]
        self.low, self.high = (floor(log10(min(ends))), ceil(log10(max(ends)))) if ends else (-4, 1)
        self.high = max(self.high, self.low + 1)

    @property
    def height(self) -> int:
        return TOP + BOTTOM + ROW * len(self.by_label) + HEAD * len(self.groups)

    def parts(self) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" font-size="11" '
            f'font-family="system-ui, sans-serif" aria-label="{escape(self.caption)}">'
            f'<rect width="{WIDTH}" height="{self.height}" fill="{GROUND}"/>'
        )
        yield _text(16, 20, self.caption, INK, "start", "12")
        yield from self._legend()
        yield from self._axis()
        top = TOP
        for title, labels in self.groups.items():
            yield _text(16, top + HEAD - 11, f"{title[0].upper()}{title[1:]}", INK, "start", "12", "600")
            top += HEAD
            for label in labels:
                yield from self._row(label, top + ROW / 2)
                top += ROW
        yield "</svg>"

    def _legend(self) -> Iterator[str]:
        x = LEFT + BITS
        for color, model in zip(COLORS, self.models, strict=False):
            yield f'<circle cx="{x}" cy="37" r="4" fill="{color}"/>{_text(x + 9, 41, model, MUTE, "start")}'
            x += 26 + 6 * len(model)
        if any(is_wide(line) for lines in self.by_label.values() for line in lines.values()):
            yield _text(WIDTH - RIGHT, 41, "dashed: too few prompts", MUTE)
        yield _text(LEFT + BITS - 16, 41, "bits", MUTE)

    def _axis(self) -> Iterator[str]:
        for power in range(self.low, self.high + 1):
            x = self._x(10.0**power)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{self.height - BOTTOM}" stroke="{LINE}"/>'
            yield _text(x, self.height - 16, f"{10.0**power:g}", MUTE, "middle")
        yield _text(LEFT - 8, self.height - 16, "mean KLD, nats", MUTE)

    def _row(self, label: str, y: float) -> Iterator[str]:
        lines = self.by_label[label]
        first = next(iter(lines.values()))
        bits = (first["key_bits"] + first["value_bits"]) / 2
        yield _text(LEFT - 8, y + 4, setting(label)[1], INK)
        yield _text(LEFT + BITS - 16, y + 4, f"{bits:.2f}", MUTE)
        for at, model in enumerate(self.models):
            if (line := lines.get(model)) is not None:
                color, beside = COLORS[at % len(COLORS)], (at - (len(self.models) - 1) / 2) * 5
                low, mean, high = (self._x(value) for value in _ends(line))
                yield f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + beside:.1f}" y2="{y + beside:.1f}" '
                dashed = ' stroke-dasharray="2 3"' if is_wide(line) else ""
                yield f'stroke="{color}"{dashed}/>'
                yield f'<circle cx="{mean:.1f}" cy="{y + beside:.1f}" r="2.6" fill="{color}"/>'

    def _x(self, kld: float) -> float:
        place = (log10(max(kld, 10.0**self.low)) - self.low) / (self.high - self.low)
        return LEFT + BITS + place * (WIDTH - LEFT - BITS - RIGHT)

    def _loss(self, label: str) -> float:
        return next(iter(self.by_label[label].values()))["kld_mean"]


def _ends(line: dict[str, Any]) -> tuple[float, float, float]:
    """Low end, mean and high end; the mean thrice where there is no interval."""
    mean = float(line["kld_mean"])
    return (mean if line["kld_low"] is None else line["kld_low"]), mean, (line["kld_high"] or mean)


def _text(x: float, y: float, said: str, fill: str, anchor: str = "end", size: str = "11", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(said)}</text>'
    )
