"""Which rule of a lane quantized what in a stored run."""

from kvq_core.errors import KvqError
from kvq_core.methods import LayerKind, ModelShape
from kvq_core.record.fields import Record
from kvq_core.spec import Assignment, Lane


def shape_of(record: Record) -> ModelShape:
    """The shape of the model a run was on."""
    env = record.environment
    kinds = tuple(LayerKind.model_validate(kind) for kind in env.kinds or ())
    return ModelShape(env.layers, env.query_heads, env.kv_heads, env.head_dim, 0, kinds=kinds)


def lane_of(record: Record, index: int) -> Lane | None:
    """A lane as it was asked for; None where this version cannot build it any more: a knob or a method is gone."""
    try:
        return Lane.model_validate(record.spec["lanes"][index])
    except (KeyError, IndexError, TypeError, ValueError, KvqError):
        return None


def lane_plan(record: Record, index: int) -> tuple[Assignment, ...] | None:
    """Which rule of a lane quantized what; None where this version cannot build the lane any more."""
    lane = lane_of(record, index)
    return None if lane is None else lane.plan(shape_of(record))
