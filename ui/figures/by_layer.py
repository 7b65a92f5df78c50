"""Values by layer, blank where a layer was not looked at."""

from typing import Any

import numpy as np

from kvq_core.analysis.plans import shape_of
from kvq_core.record.fields import Record
from ui.figures.base import round_values


def of_layers(record: Record, values: np.ndarray) -> dict[str, Any]:
    """x, y and mode of values (layers,): a line, or points where some layers are blank."""
    looked = np.array(shape_of(record).captured)
    mode = "lines" if len(looked) == len(values) else "markers"
    return {"x": looked, "y": round_values(values[looked], 2), "mode": mode}


def every_layer(record: Record) -> dict[str, Any]:
    """Of an axis of layers: blank ones at its ends are in sight, too."""
    layers = record.environment.layers
    return {} if len(shape_of(record).captured) == layers else {"range": [-0.5, layers - 0.5]}
