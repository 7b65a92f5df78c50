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
SELECTED = {
    "score-map": "scores",
    "attention-rows": "attention",
    "sinks": "sinks",
    "channels-key": "key-channels",
    "channels-value": "value-channels",
    "depth": "depth",
    "means": "means",
    "lane-spectra": "spectra",
    "key-pairs": "pairs",
    "key-channels": "key-spread",
    "latent-channels": "latent-spread",
}  # the same of those in depth; most show what is selected
READ = ("words", "replay")  # views that are no figure
TAKEN = (("png", "PNG"), ("svg", "SVG"), ("csv", "CSV"), ("parquet", "Parquet"))
PICKED = "No embed code: it shows what a picker of its view chooses, which no link says."
UNKEPT = "No embed code: computed from memory. Keep it with the run first."
ALONE = "No embed code: the page alone draws this figure."


def menu_html(figure: str, title: str, lacks: str = "") -> str:
    """``lacks``: why no frame would show this figure as it is drawn, such as ``PICKED``."""
    buttons = "".join(f'<button type="button" data-take="{what}">{name}</button>' for what, name in TAKEN)
    view = EMBEDDED.get(figure) or SELECTED.get(figure)
    if view is None or lacks:
        buttons += f"<small>{safe(lacks or ALONE)}</small>"
    else:
        at = " data-selected" * (figure in SELECTED)
        code = f'data-take="embed" data-embed="{view}"{at} aria-live="polite"'
        buttons += f'<button type="button" {code}>Copy embed code</button>'
    return _menu(figure, title, buttons)


def frame_menu(view: str, title: str, colors: str, lacks: str = "", kept: bool = True) -> str:
    """Of one of ``READ``: its picture and numbers, where they were kept, and its code, for the token and the lane that
    are shown. ``colors``: what they mean; ``lacks``: as above."""
    files = "".join(
        f'<button type="button" data-take="{what}" data-read>{name}</button>' for what, name in TAKEN if kept
    )
    code = f'data-take="embed" data-embed="{view}" data-selected data-read aria-live="polite"'
    button = f"<small>{safe(lacks)}</small>" if lacks else f'<button type="button" {code}>Copy embed code</button>'
    return _menu(view, title, files + button, f' data-colors="{safe(colors)}"')


def _menu(name: str, title: str, buttons: str, told: str = "") -> str:
    return (
        f'<details class="figure-menu" data-figure-menu="{name}"{told}><summary aria-label="Take away: {safe(title)}" '
        f'title="Take this figure away">⋯</summary><div>{buttons}</div></details>'
    )
