"""The page's look, all of it from the tokens: a quiet Gradio theme, and the stylesheet."""

from pathlib import Path

import gradio as gr

from ui.html.colors import LANES, ROUNDS, SEQUENTIAL, SEQUENTIAL_DARK, Scale, at, contrast
from ui.html.escape import SHADES
from ui.html.tokens import TOKENS, Ground, font

HUES = (
    "#eef1ff",
    "#dfe5ff",
    "#c3cdfd",
    "#9dacf7",
    "#7187ee",
    TOKENS.light["accent"],
    TOKENS.light["accent-strong"],
    "#253998",
    "#1f2f78",
    "#1a275f",
    "#131c45",
)  # Gradio's primary hue, from its lightest to its darkest
READABLE = 4.5  # contrast of small text, WCAG 2.2, 1.4.3
KNOWN = len(LANES) * len(ROUNDS)  # lanes that can be told apart
SHEETS = ("style.css", "reading.css", "along.css", "replay.css", "form.css", "study.css", "decide.css")


def theme() -> gr.themes.Base:
    """System fonts only: nothing is fetched from elsewhere. Whatever has a colour takes it from the custom properties,
    so that its dark one follows."""
    text, radius, space = TOKENS.text, TOKENS.radius, TOKENS.space
    return gr.themes.Base(
        primary_hue=gr.themes.Color(*HUES),
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
        text_size=gr.themes.sizes.text_sm,
        font=list(TOKENS.fonts["sans"]),
        font_mono=list(TOKENS.fonts["mono"]),
    ).set(
        **_both("body_background_fill", "page"),
        **_both("body_text_color", "ink"),
        **_both("body_text_color_subdued", "mute"),
        **_both("border_color_primary", "line"),
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        block_label_text_size=f"{text['small']}px",
        block_title_text_size=f"{text['small']}px",
        block_title_text_weight="600",
        **_both("block_title_text_color", "label"),
        **_both("input_background_fill", "field"),
        **_both("input_border_color", "rim"),
        input_shadow="none",
        input_border_width="1px",
        input_border_width_dark="1px",
        input_radius=f"{radius['field']}px",
        button_primary_background_fill=TOKENS.light["accent"],
        button_primary_background_fill_hover=TOKENS.light["accent-strong"],
        button_primary_background_fill_dark=TOKENS.light["accent"],
        button_primary_text_color="#ffffff",
        **_both("button_secondary_background_fill", "card"),
        **_both("button_secondary_border_color", "rim"),
        **_both("table_even_background_fill", "card"),
        **_both("table_odd_background_fill", "soft"),
        **_both("table_border_color", "line"),
        panel_background_fill="transparent",
        layout_gap=f"{space['room']}px",
    )


def _both(name: str, token: str) -> dict[str, str]:
    """An option of the theme for both grounds."""
    return {name: TOKENS.light[token], f"{name}_dark": TOKENS.dark[token]}


def css() -> str:
    """The stylesheet of the page: properties, what is generated, then the sheets that are written."""
    sheets = "".join((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in SHEETS)
    return f"{properties('.dark{{{}}}')}{shades(SEQUENTIAL, '')}{shades(SEQUENTIAL_DARK, '.dark ')}{sheets}"


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
