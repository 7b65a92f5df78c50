"""Where the damage is, in a few sentences."""

import numpy as np

from kvq_core.analysis.blank import blank_layers
from kvq_core.analysis.key_constants import constant_layers
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record
from ui.figures.base import lanes_with
from ui.figures.damage import worst_head
from ui.figures.drill import channel_shares
from ui.html.numbers import join_words, percent, significant
from ui.selection import Selection
from ui.words.views import why_empty

CONCENTRATED = 0.5  # of the squared error in a tenth of the layers


def damage(record: Record, arrays: Arrays, at: Selection) -> str:
    """Which lane loses most and where; then the selected head."""
    found = [
        _keys_and_values(record, arrays),
        _constants(arrays),
        _scores(record, arrays),
        _selected(record, arrays, at),
    ]
    if not any(found):
        return why_empty(record)
    return " ".join(filter(None, [*found, blank_layers(record)]))


def _keys_and_values(record: Record, arrays: Arrays) -> str:
    lanes = {
        kind: [
            (lane, error)
            for _, lane, error in lanes_with(record, arrays, f"{kind}_error")
            if f"{kind}s" in lane.quantized  # in others, errors of other layers pass through
        ]
        for kind in ("key", "value")
    }
    parts = []
    for kind, found in lanes.items():
        if not found:
            continue
        lane, error = max(found, key=lambda pair: float(pair[1].mean()))
        by_layer = (error**2).sum(1)
        few = max(1, round(len(by_layer) / 10))
        top = sorted(map(int, np.argsort(by_layer)[::-1][:few]))
        share = float(by_layer[top].sum() / max(by_layer.sum(), 1e-30))
        where = (
            f", {percent(share)} of it in layer{'s' if few > 1 else ''} {join_words(top)}"
            if share > CONCENTRATED
            else ""
        )
        parts.append(f"{kind}s are {percent(float(error.mean()))} off in {lane.label}{where}")
    return f"At worst, {'; '.join(parts)}." if parts else ""


def _constants(arrays: Arrays) -> str:
    """Which layers' keys carry a constant, the first cause of damage to keys per token."""
    found = constant_layers(arrays)
    if not found:
        return ""
    sizes = sorted(found.values())
    size = f"{sizes[0]:.0f}" if len(sizes) == 1 else f"{sizes[0]:.0f} to {sizes[-1]:.0f}"
    return (
        f"Keys of layer{'s' if len(found) > 1 else ''} {join_words(list(found))} carry a constant {size} times what "
        f"differs between tokens (underlined)."
    )


def _scores(record: Record, arrays: Arrays) -> str:
    lanes = list(lanes_with(record, arrays, "delta_mean"))
    if not lanes:
        return ""
    index, lane, delta = max(lanes, key=lambda found: found[2].mean())
    by_layer = delta.mean((1, 2))
    top = np.argsort(by_layer)[::-1][:3]
    share = by_layer[top].sum() / max(by_layer.sum(), 1e-30)
    layer, head = worst_head(record, arrays)
    said = (
        f"{lane.label} moves attention scores most, by {significant(float(delta.mean()), 2)} on average; layers "
        f"{join_words(sorted(map(int, top)))} hold {percent(float(share))} of it. The worst single head of all "
        f"lanes is layer {layer}, query head {head}."
    )
    alone = lane.metrics.attention_delta_reference_query if lane.metrics else None
    if alone is not None and delta.mean() > 0 and "keys" in lane.quantized:
        said += f" Its keys alone, read with the reference's queries, cost {significant(alone, 2)}."
    return said


def _selected(record: Record, arrays: Arrays, at: Selection) -> str:
    """The channel that carries most of the selected head's key error."""
    kv_head = at.kv_head(record)
    shares = [
        (index, share)
        for index, share in channel_shares(record, arrays, "key", at.layer, kv_head)
        if "keys" in record.lanes[index].quantized
    ]
    if not shares:
        return ""
    index, share = max(shares, key=lambda found: float(found[1].max()))
    channel = int(share.argmax())
    return (
        f"In layer {at.layer}, KV head {kv_head}, channel {channel} carries {percent(float(share[channel]) / 100)} of "
        f"the squared key error of {record.lanes[index].label}."
    )
