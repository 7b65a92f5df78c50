"""Layers that captures do not look at, which stay blank in views, and why."""

from kvq_core.analysis.plans import shape_of
from kvq_core.record.fields import Record
from kvq_core.spec import layer_words


def blank_layers(record: Record) -> str:
    """A sentence; nothing where all layers are looked at."""
    shape = shape_of(record)
    left = set(range(shape.layers)) - set(shape.captured)
    windowed = set(shape.windowed)
    reading = {layer for layer in left if shape.kinds[layer].reads is not None}
    empty = {layer for layer in left - reading if not shape.kinds[layer].kv_heads}
    said = (
        (windowed, "attends to a window", "attend to a window"),
        (empty, "keeps no keys", "keep no keys"),
        (
            reading,
            "reads an earlier layer's keys, whose errors stand there",
            "read earlier layers' keys, whose errors stand there",
        ),
        (left - windowed - reading - empty, "has heads of another size", "have heads of another size"),
    )
    told = [f"{layer_words(layers)} {one if len(layers) == 1 else many}" for layers, one, many in said if layers]
    return f"Not looked at, and blank: {'; '.join(told)}." if told else ""


def none_looked_at(record: Record) -> bool:
    """Whether captures could look at no layer of the run's model."""
    return not shape_of(record).captured
