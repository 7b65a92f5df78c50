"""What the browser is given of a run to read it on some of its tokens, as JSON: numbers by position, the rule of the
verdict, and what draws the resamples of its interval. js/span.js and js/worst.js read it."""

import base64
import itertools
import json
from html import escape
from typing import Any

import numpy as np

from kvq_core.analysis.floors import floor_title, floors, lane_of, larger
from kvq_core.analysis.free_text import free_text
from kvq_core.analysis.scored import P99, P999, TAIL_FROM, At
from kvq_core.analysis.span import fp16_token_bytes, token_bits
from kvq_core.analysis.token_kinds import KINDS, token_kinds
from kvq_core.analysis.verdict import resampling
from kvq_core.analysis.verdict import rule as tier_rule
from kvq_core.analysis.worst import worst_places
from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import DRAFT_TOKENS, Record
from ui.html.escape import bare, visible
from ui.html.pieces import END, Span, spans_of, words_at

COLUMNS = {"kld": "kld", "same": "same_top", "nll": "nll", "delta_p": "delta_p", "acceptance": "acceptance"}
MOST = 20_000  # scored positions of all lanes together: some 30 bytes each


def along_data(record: Record, arrays: Arrays) -> dict[str, Any]:
    """Of the reference its tokens and their numbers by scored position; of every lane and floor the same, stored bits
    of an element by token of the answer, and bytes of a token in fp16; of lanes where the damage at each position is,
    and what they flip to."""
    spans = spans_of(record, record.reference)
    return {
        "run": record.id,
        "count": len(record.reference.token_ids),
        "prompt": len(record.reference.prompt_token_ids),
        "rule": rule(),
        "pieces": [[bare(span.text or END), len(span.tokens)] for span in spans],
        "kinds": _kinds(record, spans),
        "nll": _numbers(arrays.get("reference/nll")),
        "margin": _numbers(arrays.get("reference/margin")),
        "lanes": [_lane(record, arrays, at, spans) for at in range(len(record.lanes))],
        "floors": [_row(record, arrays, at) | {"larger": at == larger(record)} for at in floors(record)],
    }


def rule() -> dict[str, Any]:
    """How verdicts are read, as data."""
    known = {"ranks": [P99, P999], "tail_from": TAIL_FROM, "drafted": DRAFT_TOKENS, "resampling": resampling()}
    return tier_rule() | known


def as_json(data: Any) -> str:
    """For the inside of an element; what is no plain letter is spelled out."""
    return escape(json.dumps(data, separators=(",", ":")), quote=False)


def binary_json(values: np.ndarray, dtype: str) -> dict[str, str]:
    """Numbers as Plotly's binary form has them: ``f4``, ``u1`` or ``u2``, little-endian, in base 64."""
    return {"dtype": dtype, "bdata": base64.b64encode(np.ascontiguousarray(values, f"<{dtype}").tobytes()).decode()}


def _lane(record: Record, arrays: Arrays, at: int, spans: list[Span]) -> dict[str, Any]:
    found = worst_places(record, arrays, at)
    where = None
    if found is not None:
        where = {
            "layer": binary_json(found.layer, "u2"),
            "head": binary_json(found.head, "u2"),
            "value": binary_json(found.value, "f4"),
            "looked": binary_json(found.looked, "u1"),
        }
    return {
        **_row(record, arrays, at),
        "number": record.number(at),
        "where": where,
        "tops": _tops(record, arrays, at, spans),
    }


def _row(record: Record, arrays: Arrays, at: At) -> dict[str, Any]:
    lane = lane_of(record, at)
    metrics, memory = lane.metrics, lane.memory
    first, count = len(record.reference.prompt_token_ids), len(record.reference.token_ids)
    bits = {
        f"{kind}_bits": equal_runs(token_bits(arrays, at, kind)[first : first + max(0, count - 1)])
        for kind in ("key", "value")
    }
    return {
        "label": bare(lane.label) if isinstance(at, int) else floor_title(record, at),
        "tie": metrics.near_tie_margin if metrics else 0.0,
        "failed": lane.status == "failed",
        "broken": "nan" in lane.flags,
        "idle": "never_engaged" in lane.flags,
        "repeats": isinstance(at, int) and free_text(record, at).repeats_from is not None,
        "token_bytes": None if memory is None else fp16_token_bytes(memory),
        **bits,
        **{name: _numbers(arrays.get(f"lane/{at}/{of}")) for name, of in COLUMNS.items()},
    }


def _kinds(record: Record, spans: list[Span]) -> dict[str, list[int]]:
    """Tokens of each kind."""
    of = token_kinds([span.text for span in spans])
    return {
        kind: [token for span, kinds in zip(spans, of, strict=True) if kind in kinds for token in span.tokens]
        for kind in KINDS
    }


def _tops(record: Record, arrays: Arrays, at: int, spans: list[Span]) -> dict[int, list[Any]]:
    """By token, where the lane flips: its most probable token and the reference's, each with its probability."""
    names = (f"lane/{at}/same_top", f"lane/{at}/topk_ids", f"lane/{at}/topk_probs")
    same, own, shares = (array(arrays, name) for name in names)
    ids, probs = array(arrays, "reference/topk_ids"), array(arrays, "reference/topk_probs")
    if same is None or own is None or shares is None or ids is None or probs is None:
        return {}
    found = {}
    for step in np.flatnonzero(same == 0).tolist():
        word = words_at(record, step + 1, spans)
        pairs = ((own, shares), (ids, probs))
        found[step + 1] = [
            part for a, p in pairs for part in (bare(visible(word(int(a[step, 0])))), round(float(p[step, 0]), 3))
        ]
    return found


def _numbers(values: Any) -> dict[str, str] | None:
    if values is None:
        return None
    found = np.asarray(values)
    return binary_json(found, "u1" if found.dtype == np.uint8 else "f4")


def equal_runs(values: np.ndarray) -> list[float]:
    """Equal neighbours once, with their number: value, count, value, count."""
    return [part for value, of in itertools.groupby(values.tolist()) for part in (value, len(list(of)))]
