"""The page's look: a quiet Gradio theme, and the stylesheet with the token colours generated from the scales."""

from pathlib import Path

import gradio as gr

from ui.html.colors import ACCENT, LANES, SEQUENTIAL, SEQUENTIAL_DARK, Scale, at, rgb
from ui.html.escape import SHADES

SANS = ["system-ui", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif"]
HUES = (
    "#eef1ff",
    "#dfe5ff",
    "#c3cdfd",
    "#9dacf7",
    "#7187ee",
    ACCENT,
    "#2c45b8",
    "#253998",
    "#1f2f78",
    "#1a275f",
    "#131c45",
)
SHEETS = ("style.css", "reading.css", "study.css")
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]


def theme() -> gr.themes.Base:
    """System fonts only: nothing is fetched from elsewhere."""
    return gr.themes.Base(
        primary_hue=gr.themes.Color(*HUES),
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
        text_size=gr.themes.sizes.text_sm,
        font=SANS,
        font_mono=MONO,
    ).set(
        body_background_fill="#f7f8fa",
        body_background_fill_dark="#0f131b",
        body_text_color="#1b2230",
        body_text_color_dark="#e6e9ef",
        body_text_color_subdued="#667085",
        body_text_color_subdued_dark="#98a2b3",
        border_color_primary="#e4e7ec",
        border_color_primary_dark="#2a3140",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        block_label_text_size="12px",
        block_title_text_size="12px",
        block_title_text_weight="600",
        block_title_text_color="#475467",
        block_title_text_color_dark="#98a2b3",
        input_background_fill="#ffffff",
        input_background_fill_dark="#11161f",
        input_border_color="#d5dae2",
        input_border_color_dark="#2f3747",
        input_shadow="none",
        input_border_width="1px",
        input_border_width_dark="1px",
        input_radius="8px",
        button_primary_background_fill=ACCENT,
        button_primary_background_fill_hover="#2c45b8",
        button_primary_background_fill_dark="#4a64e0",
        button_primary_text_color="#ffffff",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_dark="#171c27",
        button_secondary_border_color="#d5dae2",
        button_secondary_border_color_dark="#2f3747",
        panel_background_fill="transparent",
        layout_gap="12px",
    )


def css() -> str:
    return (
        "".join((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in SHEETS)
        + _lanes()
        + shades(SEQUENTIAL, "")
        + shades(SEQUENTIAL_DARK, ".dark ")
    )


def _lanes() -> str:
    return "".join(f".lane-{i}{{--lane:{color}}}" for i, color in enumerate(LANES))


def shades(scale: Scale, where: str) -> str:
    """Class k1 .. k12: a token's ground, and the ink that can be read on it."""
    rules = []
    for k in range(SHADES + 1):
        ground = at(scale, k / SHADES)
        ink = "#1b2230" if _lightness(ground) > 0.45 else "#ffffff"
        rules.append(f"{where}.k{k}{{--ground:{ground};--ink:{ink}}}")
    return "".join(rules)


def _lightness(color: str) -> float:
    red, green, blue = rgb(color)
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255
