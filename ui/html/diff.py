"""Two texts compared token by token, and two top-k lists side by side, as HTML."""

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.html.escape import safe, span_text, visible
from ui.html.numbers import percent, plural, significant
from ui.html.pieces import span_at, spans_of, words_at

Text = tuple[str, list[str], list[tuple[int, ...]]]  # label, spans of tokens as text, and their ids


def text_of(record: Record, index: int) -> Text:
    """A lane's own text; -1 is the full-precision cache's."""
    row = record.reference if index < 0 else record.lanes[index]
    label = "Full precision" if index < 0 else record.lanes[index].label
    found = spans_of(record, row)
    return label, [span.text for span in found], [tuple(row.token_ids[i] for i in span.tokens) for span in found]


def diff(one: Text, two: Text) -> str:
    """What turns the first text into the second, on token ids; texts that decode alike can differ in ids.

    A character of several tokens is compared whole: tokens that two characters share are none of their text.
    """
    parts, kept = [], 0
    for op in Levenshtein.opcodes(one[2], two[2]):
        old = "".join(one[1][op.src_start : op.src_end])
        new = "".join(two[1][op.dest_start : op.dest_end])
        if op.tag == "equal":
            kept += _tokens(one[2][op.src_start : op.src_end])
            parts.append(safe(old))
            continue
        parts.append(f"<del>{safe(old)}</del>" if old else "")
        parts.append(f"<ins>{safe(new)}</ins>" if new else "")
    said = (
        f"{safe(one[0])} → {safe(two[0])}: {kept} of {plural(max(_tokens(one[2]), _tokens(two[2])), 'token')} in "
        "common, "
        "in order."
    )
    return f'<p class="muted">{said}</p><div class="tokens diff">{"".join(parts)}</div>'


def _tokens(ids: Sequence[tuple[int, ...]]) -> int:
    return sum(map(len, ids))


def top_lists(record: Record, arrays: Arrays, index: int, token: int) -> str:
    """The most probable tokens at a position, reference and lane, as bars on one scale."""
    step = token - 1
    title = f"<h4>Token {token}</h4>"
    if step < 0:
        return f'{title}<p class="absent">The first token comes from the shared prefill; no lane is scored on it.</p>'
    kind = f"lane-{record.number(index)}"
    rows = [("Full precision", "ref", "reference"), (record.lanes[index].label, kind, f"lane/{index}")]
    lists = [_top_list(record, arrays, step, *row) for row in rows]
    if not all(lists):
        return f'{title}<p class="absent">Not captured in this run.</p>'
    kld = array(arrays, f"lane/{index}/kld")
    span = span_at(spans_of(record, record.reference), token)
    said = f"Followed: “{safe(span_text(span) if span else '')}”"
    if span and len(span.tokens) > 1:
        said += f", of tokens {span.first} to {span.last}"
    if kld is not None and step < kld.size:
        said += f" · KLD {significant(float(kld[step]))} nats"
    return f'{title}<p class="muted">{said}</p><div class="tops">{"".join(lists)}</div>'


def top_rows(record: Record, arrays: Arrays, index: int) -> list[list[object]]:
    """The same lists at every scored token, reference and lane, as lines of a table: see ui.views.export."""
    rows: list[list[object]] = []
    followed = spans_of(record, record.reference)
    for label, key in (("Full precision", "reference"), (record.lanes[index].label, f"lane/{index}")):
        ids, probs = array(arrays, f"{key}/topk_ids"), array(arrays, f"{key}/topk_probs")
        if ids is None or probs is None:
            continue
        for token, (named, shares) in enumerate(zip(ids.astype(int).tolist(), probs.tolist(), strict=True), 1):
            word = words_at(record, token, followed)
            for id, p in zip(named, shares, strict=True):
                rows.append([label, token, word(id), p, "token of the followed text", "next token", "probability"])
    return rows


def _top_list(record: Record, arrays: Arrays, step: int, label: str, name: str, key: str) -> str:
    ids, probs = array(arrays, f"{key}/topk_ids"), array(arrays, f"{key}/topk_probs")
    if ids is None or probs is None or step >= len(ids):
        return ""
    followed = record.reference.token_ids[step + 1] if step + 1 < len(record.reference.token_ids) else None
    items, word = [], words_at(record, step + 1, spans_of(record, record.reference))
    for id, p in zip(ids[step].astype(int).tolist(), probs[step].tolist(), strict=True):
        here = " class='followed'" if id == followed else ""
        items.append(
            f'<li{here}><span>{safe(visible(word(id)))}</span><b style="--w:{100 * min(1.0, p):.1f}%"></b>'
            f"<em>{percent(p, 1)}</em></li>"
        )
    return f'<div class="{name}"><h5>{safe(label)}</h5><ol>{"".join(items)}</ol></div>'
