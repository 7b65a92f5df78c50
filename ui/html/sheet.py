"""The stylesheet of the page and of what leaves it: the tokens as custom properties, and the sheets."""

from collections.abc import Sequence
from pathlib import Path

from ui.html.colors import LANES, ROUNDS, SEQUENTIAL, SEQUENTIAL_DARK, Scale, at, contrast
from ui.html.escape import SHADES
from ui.html.tokens import TOKENS, Ground, font

READABLE = 4.5  # contrast of small text, WCAG 2.2, 1.4.3
KNOWN = len(LANES) * len(ROUNDS)  # lanes that can be told apart
UNDONE = ".gradio-container .prose, .gradio-container .prose * { color: inherit; font-size: inherit; }"
OF_RUNS = ("style.css", "reading.css", "along.css", "replay.css")
SHEETS = (*OF_RUNS, "form.css", "study.css", "decide.css")


def css(names: Sequence[str] = SHEETS) -> str:
    """The stylesheet of the page: properties, what is generated, then the sheets that are written."""
    sheets = "".join((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in names)
    return f"{properties('.dark{{{}}}')}{shades(SEQUENTIAL, '')}{shades(SEQUENTIAL_DARK, '.dark ')}{sheets}"


def plain_css(names: Sequence[str] = SHEETS) -> str:
    """The same where Gradio's own style is not: without what undoes that."""
    return css(names).replace(UNDONE, "")


def properties(dark: str) -> str:
    """Every token as a custom property, and the lanes' classes; ``dark`` is the rule that takes those of the dark
    ground."""
    calm = "".join(f"--motion-{name}:0ms;" for name in TOKENS.motion)
    return (
        f":root{{{colors('light')}{sizes()}}}{dark.format(colors('dark'))}"
        f"@media (prefers-reduced-motion:reduce){{:root{{{calm}}}}}{lanes()}"
    )


def colors(ground: Ground) -> str:
    """Custom properties of one ground: colours by name, and the lanes' hues."""
    named = {**getattr(TOKENS, ground), **{f"hue-{n}": hue for n, hue in enumerate(getattr(TOKENS.lanes, ground))}}
    return "".join(f"--{name}:{color};" for name, color in named.items())


def sizes() -> str:
    """Custom properties of type, space, corners, motion and fonts."""
    parts = {"text": TOKENS.text, "space": TOKENS.space, "radius": TOKENS.radius}
    found = [f"--{part}-{name}:{value:g}px;" for part, of in parts.items() for name, value in of.items()]
    found += [f"--motion-{name}:{value:g}ms;" for name, value in TOKENS.motion.items()]
    return "".join([*found, *(f"--{name}:{font(name)};" for name in TOKENS.fonts)])


def lanes() -> str:
    """Class lane-0 .. lane-63: a lane's hue, and from the ninth on its edge and the weave of its swatch."""
    rules = [_of([*range(hue, KNOWN, len(LANES))], f"--lane:var(--hue-{hue})") for hue in range(len(LANES))]
    for number, marks in enumerate(ROUNDS[1:], 1):
        first = number * len(LANES)
        rules.append(_of([*range(first, first + len(LANES))], f"--edge:{marks.edge};--weave:{marks.weave},"))
    return "".join(rules)


def _of(numbers: list[int], style: str) -> str:
    return f"{','.join(f'.lane-{number}' for number in numbers)}{{{style}}}"


def shades(scale: Scale, where: str) -> str:
    """Class k1 .. k12: a token's ground, and the ink that can be read on it."""
    rules = []
    for k in range(SHADES + 1):
        ground = at(scale, k / SHADES)
        rules.append(f"{where}.k{k}{{--ground:{ground};--ink:{ink_on(ground)}}}")
    return "".join(rules)


def ink_on(ground: str) -> str:
    """The page's ink, or white, where it can be read there; grounds between the two take black."""
    inks = (TOKENS.light["ink"], "#ffffff", "#000000")
    return next((ink for ink in inks if contrast(ink, ground) >= READABLE), inks[-1])
