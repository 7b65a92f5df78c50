"""A quiet Gradio theme, all of it from the tokens."""

import gradio as gr

from ui.html.tokens import TOKENS

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
