"""What every page that leaves this one is: a document that fetches nothing, whose script is sealed by its hash."""

import base64
import hashlib
from pathlib import Path

from ui.html.colors import SEQUENTIAL, SEQUENTIAL_DARK
from ui.html.escape import safe
from ui.html.sheet import properties, shades


def style() -> str:
    """Of small pages: a figure alone, the lab."""
    colors = properties("@media (prefers-color-scheme: dark){{:root{{{}}}}}") + shades(SEQUENTIAL, "")
    dark = f"@media (prefers-color-scheme: dark){{{shades(SEQUENTIAL_DARK, '')}}}"
    return colors + dark + Path(__file__).with_name("plain.css").read_text(encoding="utf-8")


def document(title: str, description: str, sheet: str, body: str, script: str, charset: str = "utf-8") -> str:
    """The document around a ``<body>`` element. Without a script none runs in it."""
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    may = f"; script-src 'sha256-{seal}'" if script else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="{charset}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f'img-src data:{may}"><title>{safe(title)}</title>'
        + (f'<meta name="description" content="{safe(description)}">' if description else "")
        + f"<style>{sheet}</style></head>{body.removesuffix('</body>')}"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>"
    )


def ascii_text(markup: str) -> str:
    """Markup whose characters are all ASCII; what is in ``<script>`` and ``<style>`` needs escapes of its own."""
    return markup.encode("ascii", "xmlcharrefreplace").decode()


def ascii_script(script: str) -> str:
    return "".join(c if c.isascii() else _utf16(c) for c in script)


def ascii_sheet(sheet: str) -> str:
    return "".join(c if c.isascii() else f"\\{ord(c):x} " for c in sheet)


def _utf16(character: str) -> str:
    raw = character.encode("utf-16-be").hex()
    return "".join(f"\\u{raw[at : at + 4]}" for at in range(0, len(raw), 4))
