"""The tour's toy: 16 real keys under a slider of bits. The methods themselves compute every setting into a small table;
js/toy.js only draws what stands in it."""

import base64
import json
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product

import numpy as np
import torch

from kvq_core.frozen import Frozen
from kvq_core.methods import make
from kvq_core.pipeline.roundtrip import roundtrip
from kvq_core.presets import FOLDER
from ui.html.escape import safe, visible
from ui.html.numbers import percent, plural

FILE = FOLDER / "learn" / "keys.json"
BITS = (1, 2, 3, 4, 8)
WAYS = (("per_token", "A scale a token"), ("per_channel", "A scale a channel"))
START = "per_token", 8


class Keys(Frozen):
    """Keys (16, head_dim) of one KV head and the last token's query (head_dim), after RoPE; scripts/learn_keys.py wrote
    them."""

    model: str
    weights: str
    text: str
    layer: int
    kv_head: int
    query_head: int
    tokens: tuple[str, ...]
    keys: tuple[tuple[float, ...], ...]
    query: tuple[float, ...]


@dataclass(frozen=True)
class ToySetting:
    """What is left of the keys: int8 codes of ``top / 127`` as base64, row after row; the last token's attention over
    them in percent; their bytes, metadata included; half the attention that moved, in percent."""

    codes: str
    attention: tuple[float, ...]
    nbytes: int
    moved: float


@cache
def keys() -> Keys:
    return Keys(**json.loads(FILE.read_text(encoding="utf-8")))


@cache
def table() -> dict[str, ToySetting]:
    """By ``way bits``, and ``exact``: the keys themselves, as an fp16 cache holds them."""
    exact = torch.tensor(keys().keys)
    tokens, dim = exact.shape
    whole = attention(exact)
    found = {"exact": ToySetting(_codes(exact), _percent(whole), 2 * exact.numel(), 0.0)}
    for (way, _), group in zip(WAYS, (dim, tokens), strict=True):
        for bits in BITS:
            method = make(way, bits=bits, group_size=group)
            stored = roundtrip(method, exact[None], exact[None])
            nbytes = sum(size for part, size in stored.nbytes.items() if part.startswith("key_"))
            own = attention(stored.keys[0])
            moved = 50 * float((own - whole).abs().sum())
            found[f"{way} {bits}"] = ToySetting(_codes(stored.keys[0]), _percent(own), nbytes, round(moved, 1))
    return found


def attention(stored: torch.Tensor) -> torch.Tensor:
    """softmax(K q / sqrt(head_dim)) of the last token: (16), in float64."""
    query = torch.tensor(keys().query, dtype=torch.float64)
    return torch.softmax(stored.double() @ query / len(query) ** 0.5, -1)


def _codes(stored: torch.Tensor) -> str:
    top = max(abs(value) for row in keys().keys for value in row)
    codes = np.clip(np.round(stored.numpy() * (127 / top)), -127, 127).astype(np.int8)
    return base64.b64encode(codes.tobytes()).decode()


def _percent(shares: torch.Tensor) -> tuple[float, ...]:
    return tuple(round(100 * share, 1) for share in shares.tolist())


def toy_html() -> str:
    """The toy as it opens. The table is in it: no setting asks the server."""
    held = keys()
    settings = {name: asdict(setting) for name, setting in table().items()}
    for (way, _), bits in product(WAYS, BITS):
        settings[f"{way} {bits}"]["said"] = said_of(way, bits)
    said = f"{held.model}, layer {held.layer}, KV head {held.kv_head}, query head {held.query_head}: “{held.text}”"
    return (
        f'<div class="toy" id="toy" data-columns="{len(held.query)}"><div hidden>{safe(json.dumps(settings))}</div>'
        f'<div class="toy-controls">{_slider()}{_ways()}</div><p class="toy-said" role="status">{said_of(*START)}</p>'
        f'<div class="toy-rows"><ol class="toy-tokens" aria-hidden="true">{_rows(held)}</ol>'
        f'{_map("exact", "16 bits")}{_map("stored", "stored")}<div class="toy-bars" role="img" '
        'aria-label="Attention of the last token over the 16 keys"></div></div>'
        f'<p class="muted">{len(held.tokens)} keys of {plural(len(held.query), "channel")} each, after RoPE; purple is '
        f"negative, orange positive. Bars: the last token's attention, %; outlined at 16 bits. Real keys of "
        f"{safe(said)}</p></div>"
    )


def said_of(way: str, bits: int) -> str:
    """What a setting does, in a sentence."""
    setting, exact = table()[f"{way} {bits}"], table()["exact"]
    return (
        f"{plural(bits, 'bit')} a number: {setting.nbytes:,} bytes instead of {exact.nbytes:,}, scales included; "
        f"{percent(setting.moved / 100)} of the attention goes to other tokens."
    )


def _slider() -> str:
    marks = "".join(f"<span>{bits}</span>" for bits in BITS)
    return (
        f'<label class="toy-bits"><span>Bits</span><input type="range" id="toy-bits" min="0" max="{len(BITS) - 1}" '
        f'step="1" value="{BITS.index(START[1])}" data-bits="{" ".join(map(str, BITS))}" '
        f'aria-valuetext="{START[1]} bits"><span class="toy-marks" aria-hidden="true">{marks}</span></label>'
    )


def _ways() -> str:
    choices = "".join(
        f'<label><input type="radio" name="toy-way" value="{way}"{" checked" * (way == START[0])}>{title}</label>'
        for way, title in WAYS
    )
    return f'<fieldset class="toy-ways"><legend class="sr-only">What shares a scale</legend>{choices}</fieldset>'


def _rows(held: Keys) -> str:
    return "".join(f"<li>{safe(visible(token))}</li>" for token in held.tokens)


def _map(name: str, title: str) -> str:
    return (
        f'<figure class="toy-map {name}"><canvas id="toy-{name}" role="img" aria-label="The keys, {title}"></canvas>'
        f"<figcaption>{title}</figcaption></figure>"
    )
