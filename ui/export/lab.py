"""The lab: one page on which a browser quantizes real keys and values itself, with the codecs of ui/js/lab. All it
shows is in the page, and nothing is fetched."""

import base64
import hashlib
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open

from kvq_core.presets import FOLDER
from ui.export.document import style
from ui.html.scripts import part
from ui.html.tokens import TOKENS

TENSORS = FOLDER / "lab" / "tensors.safetensors"  # scripts/lab_tensors.py wrote them
MODULES = ("codecs", "transforms", "reading", "figures", "state", "page")
_KEYS = (
    ("computed", "Keys as computed", "after RoPE, in full precision"),
    ("seen", "What is rounded", "after the transforms"),
    ("error", "Error of what is read", "read back, less computed"),
)
_NUMBERS = (
    ("bits", "Stored, an element", "bits-of"),
    ("key-error", "Key error, relative", "value-error"),
    ("score-error", "Score error, rms", "score-means"),
    ("moved", "Attention moved", "moved-of"),
    ("output-error", "Output error, relative", "output-of"),
)


@cache
def script() -> str:
    """The modules as one: names are shared, so that what one imports of another is there."""
    modules = "".join(part(f"lab/{name}") for name in MODULES)
    return re.sub(r"^(import .*\n|export )", "", modules, flags=re.MULTILINE)


def told() -> dict[str, Any]:
    """What the page is told beside the tensors: the models, the stories and the colours."""
    with safe_open(TENSORS, "numpy") as file:
        models = json.loads(file.metadata()["lab"])
        heads = [file.get_slice(f"{i}/keys/codes").get_shape()[1] for i in range(len(models["models"]))]
    for model, count in zip(models["models"], heads, strict=True):
        model["kv_heads"] = count
    stories = tomllib.loads((FOLDER / "lab" / "stories.toml").read_text(encoding="utf-8"))
    scales = {
        ground: {name: [color for _, color in stops] for name, stops in own.model_dump().items()}
        for ground, own in TOKENS.scales.items()
    }
    return {**models, **stories, "scales": scales}


@cache
def lab() -> str:
    """The whole document."""
    seal = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    words = json.dumps(told(), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    css = style() + Path(__file__).with_name("lab.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The lab · KVQ Explorer</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f"img-src data:; script-src 'sha256-{seal}'\">"
        '<meta name="description" content="Quantize a real key cache in your browser and see what attention reads.">'
        f"<style>{css}</style></head><body>{_body()}"
        f'<script type="application/json" id="lab-words">{words}</script>'
        f'<script type="text/plain" id="lab-tensors">{base64.b64encode(TENSORS.read_bytes()).decode()}</script>'
        f'<script type="module">{script()}</script></body></html>'
    )


def _body() -> str:
    picks = "".join(f'<select id="{name}" aria-label="{name.title()}"></select>' for name in ("model", "layer", "head"))
    return (
        '<header><div><h1>The lab</h1><p class="mute">Real keys, values and queries of two models, quantized here, in '
        f'your browser, by the codecs that runs use.</p></div><div class="picks">{picks}</div></header><main>'
        "<noscript>The lab computes in your browser: it needs JavaScript.</noscript>"
        '<nav id="steps" aria-label="Stories"></nav><p id="story"></p>'
        '<section class="told"><p id="answer" role="status"></p></section>'
        '<aside id="controls" aria-label="How keys and values are stored"></aside>'
        f'<div class="shown">{_numbers()}{_keys()}{_power()}{_reading()}'
        "<section><h2>Run it on the whole model</h2><p>This head is one of many. The lane that stores all of them like "
        'this, for a comparison:</p><pre id="lane" tabindex="0"></pre><p class="mute" id="fidelity"></p></section>'
        "</div></main>"
    )


def _numbers() -> str:
    numbers = "".join(
        f'<div><dt>{label}</dt><dd><b id="{name}"></b><small id="{below}"></small></dd></div>'
        for name, label, below in _NUMBERS
    )
    stacks = "".join(
        f'<span>{title}s</span><div><div id="{title.lower()}-bytes"></div></div>'
        f'<small id="{title.lower()}-bytes-said"></small>'
        for title in ("Key", "Value")
    )
    return (
        f'<section aria-label="Numbers"><dl class="numbers">{numbers}</dl><div class="stack">{stacks}</div></section>'
    )


def _keys() -> str:
    maps = "".join(
        f'<figure><figcaption>{title} <small>{said} · <span id="most-{name}"></span></small></figcaption>'
        f"{_canvas(f'map-{name}', title + ': positions to the right, channels down', 0)}</figure>"
        for name, title, said in _KEYS
    )
    return (
        f'<section class="keys"><h2>Keys</h2>{maps}<p class="mute" id="pointed" aria-live="polite">Positions to the '
        "right, channels down; purple is negative, orange positive, by the square root, on one scale. Point at a key, "
        "or walk with the arrow keys.</p></section>"
    )


def _power() -> str:
    maps = "".join(
        f"<figure><figcaption>{title}</figcaption>"
        f"{_canvas(f'power-{name}', f'{title}: power of each channel by frequency along positions')}</figure>"
        for name, title, _ in _KEYS
        if name != "seen"
    )
    return (
        f'<section><h2>Spectrogram</h2><div class="pair">{maps}</div><p class="mute">Frequency along positions to the '
        "right, 0 to π/2 radians a token; channels down; 70 dB. A constant before RoPE is one line a channel after it, "
        "at the angle RoPE turns that channel by. Rounding errors are noise at all frequencies.</p></section>"
    )


def _reading() -> str:
    return (
        "<section><h2>Score error</h2>"
        f"{_canvas('map-scores', 'Score error: positions to the right, the newest 32 tokens down')}"
        '<p class="mute">q·k/√d read back, less computed: positions to the right, the newest 32 tokens down. Colours '
        "end at ±8; softmax multiplies a weight by e to that power.</p></section>"
        '<section><h2>What attention reads</h2><label class="slider"><span>The token that reads, of the newest 32'
        '</span><input type="range" id="reader" min="0" max="31" step="1"></label><p id="reads"></p>'
        f"{_canvas('bars', 'Attention over the positions, by its square root')}"
        '<p class="mute">Bars: attention as it is read; line: in full precision; both by the square root. In the text, '
        'orange words gain attention and purple ones lose it.</p><div class="tokens" id="words" tabindex="0" '
        'role="region" aria-label="The prompt"></div></section>'
    )


def _canvas(name: str, label: str, tab: int | None = None) -> str:
    stop = "" if tab is None else f' tabindex="{tab}"'
    return f'<canvas id="{name}" role="img" aria-label="{label}"{stop}></canvas>'
