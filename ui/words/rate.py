"""Which lanes are worth their bits."""

import numpy as np

from kvq_core.record.arrays import Arrays, array
from kvq_core.record.fields import Record
from ui.figures.rate import beaten, front, points
from ui.html.numbers import bits, join_words, percent, significant


def rates(record: Record, arrays: Arrays) -> str:
    """The front in KLD, who is off it, and how far the keys are from a Gaussian source's limit."""
    found = points(record, arrays, "kld")
    if not found:
        return "No lane finished with scored positions; there is nothing to compare."
    best = front(found)
    named = [f"{record.lanes[i].label} ({bits(b)} bits, {significant(k, 2)} nats)" for i, b, k in best]
    said = f"Nobody here has both fewer bits and less KLD than {join_words(named)}."
    for indices, where in zip(beaten(found), ("in both", "in one of them, at an equal other"), strict=True):
        labels = [record.lanes[i].label for i in indices]
        said += f" Beaten {where}: {join_words(labels)}." if labels else ""
    return " ".join(filter(None, [said, _alone(record), _gaussian(record, arrays)]))


def _alone(record: Record) -> str:
    """What quantizing only keys or only values costs, where lanes do."""
    parts = [
        f"{lane.label} leaves the {'values' if lane.quantized == ('keys',) else 'keys'} alone and costs "
        f"{significant(lane.metrics.kld_mean, 2)} nats"
        for lane in record.lanes
        if len(lane.quantized) == 1 and lane.metrics and lane.metrics.kld_mean is not None
    ]
    return f"{'; '.join(parts)}." if parts else ""


def _gaussian(record: Record, arrays: Arrays) -> str:
    grid, error = array(arrays, "gaussian/bits"), array(arrays, "gaussian/key_error")
    found = [p for p in points(record, arrays, "key") if p[2] > 0]
    if grid is None or error is None or not found or len(grid) < 2:
        return ""
    index, at, value = min(found, key=lambda p: p[1])
    limit = 100 * float(np.exp(np.interp(at, grid, np.log(np.maximum(error, 1e-12)))))
    return (
        f"At its {bits(at)} bits, {record.lanes[index].label} has a key error of {percent(value / 100, 1)}; a Gaussian "
        f"source with the same covariance needs {significant(limit, 2)} % (a reference, not a bound)."
    )
