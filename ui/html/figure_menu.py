"""A figure's own menu: what of it can be taken away. js/take.js does so."""

from ui.html.escape import safe

EMBEDDED = {
    "kld-strips": "kld",
    "rate-kld": "rate",
    "rate-flips": "rate-flips",
    "rate-key": "rate-keys",
    "rate-value": "rate-values",
    "rate-output": "rate-output",
    "confidence": "confidence",
    "bytes": "bytes",
    "grid-key": "keys",
    "grid-value": "values",
    "ranks": "rank",
}  # by figure, the view of /embed that shows it
TAKEN = (("png", "PNG"), ("svg", "SVG"), ("csv", "CSV"), ("parquet", "Parquet"))


def menu_html(figure: str, title: str, embeds: bool = True) -> str:
    """``embeds``: not where a picker has the figure show what no frame would."""
    buttons = "".join(f'<button type="button" data-take="{what}">{name}</button>' for what, name in TAKEN)
    if embeds and figure in EMBEDDED:
        code = f'data-take="embed" data-embed="{EMBEDDED[figure]}" aria-live="polite"'
        buttons += f'<button type="button" {code}>Copy embed code</button>'
    return (
        f'<details class="figure-menu" data-figure-menu="{figure}"><summary aria-label="Take away: {safe(title)}" '
        f'title="Take this figure away">⋯</summary><div>{buttons}</div></details>'
    )
