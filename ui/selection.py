"""What is selected: one layer, one query head (with it the KV head it reads), one token. Every view shows the same."""

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.damage import clearest_head
from ui.html.escape import safe, span_text
from ui.html.numbers import significant
from ui.html.pieces import span_at, spans_of


@dataclass(frozen=True)
class Selection:
    """``head`` is a query head; ``token`` an index into the reference's tokens, scored from token 1 on."""

    layer: int = 0
    head: int = 0
    token: int = 1

    @property
    def step(self) -> int:
        """The scored position that predicted the token."""
        return max(0, self.token - 1)

    def kv_head(self, record: Record) -> int:
        return self.head // group_of(record)


def group_of(record: Record) -> int:
    """Query heads that share a KV head."""
    return max(1, record.environment.query_heads // max(1, record.environment.kv_heads))


def read_selection(record: Record, layer: Any, head: Any, token: Any) -> Selection:
    """A selection of this run from whatever the controls hold."""
    env = record.environment
    return Selection(
        _within(layer, env.layers - 1), _within(head, env.query_heads - 1), _within(token, last_token(record))
    )


def last_token(record: Record) -> int:
    return max(0, len(record.reference.token_ids) - 1)


def start(record: Record, arrays: Arrays) -> Selection:
    """Where a run is opened, of what it captured: the head where damage is best seen, the token with the highest KLD of
    any lane, of those whose attention was looked at where some were."""
    layer, head = clearest_head(record, arrays)
    worst = [array(arrays, f"lane/{i}/kld") for i in range(len(record.lanes))]
    scored = [kld for kld in worst if kld is not None and kld.size]
    looked = {step for step in record.capture.attention_steps if all(step < kld.size for kld in scored)}
    peaks = [max((float(kld[step]), step + 1) for step in looked or range(kld.size)) for kld in scored]
    return read_selection(record, layer, head, max(peaks)[1] if peaks else 0)


def apply_pick(raw: Any, now: Selection, record: Record) -> Selection:
    """The selection after a click in a figure or on a token; what a browser sends is anybody's text."""
    values = _numbers(raw)
    layer, token = values.get("layer", now.layer), values.get("token", now.token)
    if "step" in values:
        token = values["step"] + 1
    if values.get("position", -1) >= (prompt := len(record.reference.prompt_token_ids)):  # else it is of the prompt
        token = values["position"] - prompt
    head = values.get("head", now.head)
    if "kv_head" in values and round(values["kv_head"]) != now.kv_head(record):
        head = round(values["kv_head"]) * group_of(record)
    return replace(now, **vars(read_selection(record, layer, head, token)))


PARTS = {"layer": "layer", "head": "head", "kv_head": "head", "token": "token", "step": "token", "position": "token"}


def parts_picked(raw: Any) -> dict[str, float]:
    """What of layer, head and token a click picks, each with when that was, in ms on the page's clock."""
    values = _numbers(raw)
    return {PARTS[name]: values.get("at", 0.0) for name in values if name in PARTS}


def _numbers(raw: Any) -> dict[str, float]:
    """The finite numbers of a click; what a browser sends is anybody's text."""
    try:
        asked = json.loads(raw)
    except (TypeError, ValueError, RecursionError):
        return {}
    if not isinstance(asked, dict):
        return {}
    return {k: v for k, v in asked.items() if isinstance(v, int | float) and math.isfinite(v)}


def selection_html(record: Record, arrays: Arrays, at: Selection) -> str:
    """The selection in words, as HTML."""
    group, span = group_of(record), span_at(spans_of(record, record.reference), at.token)
    shared = f", one of {group} that read it" if group > 1 else ""
    piece = span_text(span) if span else ""
    sentence = (
        f"Layer <b>{at.layer}</b> · query head <b>{at.head}</b> of KV head <b>{at.kv_head(record)}</b>{shared} · "
        f"token <b>{at.token}</b> “{safe(piece)}”"
    )
    nll = array(arrays, "reference/nll")
    if at.token == 0:
        sentence += ", from the shared prefill: not scored"
    elif nll is not None and at.step < nll.size:
        share = significant(100 * math.exp(-float(nll[at.step])), 2)
        sentence += f", which the full-precision cache gives {share}\N{NO-BREAK SPACE}%"
    where = json.dumps({"run": record.id, **asdict(at)})
    return f'<p class="selected" role="status" data-at="{safe(where)}">{sentence}.</p>'


def _within(value: Any, high: int) -> int:
    number = value if isinstance(value, int | float) and math.isfinite(value) else 0
    return min(max(0, round(number)), max(0, high))
