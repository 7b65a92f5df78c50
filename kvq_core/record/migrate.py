"""Runs of older versions of the record, brought up to today's fields when they are read; files are never rewritten.

SCHEMA_VERSION is raised whenever a field of the record or of the manifest comes, goes or changes its meaning. A field
that comes goes into ``LATER`` with what it is in a run that has none: what such a run did not measure stays absent.
"""

from typing import Any

from kvq_core.errors import StoreError
from kvq_core.record.fields import SCHEMA_VERSION

Data = dict[str, Any]
_RULE: Data = {"center": "none", "rotate": "none", "rotate_block": None, "fold": "none", "sliding": False}
# what came after version 1, by the part of a record that it is a field of
LATER: dict[str, Data] = {
    "record": {"stress": None, "kernel_floor": None, "vocabulary": {}, "parent": None},
    "environment": {
        **dict.fromkeys(("model_hash", "quantization", "kinds", "weights_bytes", "reference")),
        "reference_apart": False,
    },
    "capture": {
        **{name: [] for name in ("attention_steps", "depth_edges", "distribution_layers", "quantiles", "angle_ranks")},
        "sink_tokens": 0,
        "subspace_texts": {},
        "seconds": 0.0,
        "seconds_decoding": 0.0,
    },
    "lane": {**_RULE, "select": None, "prefill": "full"},
    "rule": _RULE,
    "metrics": {
        **dict.fromkeys(("output_error", "output_bound", "acceptance", "tokens_a_step", "prompt")),
        "turns": [],
    },
    "memory": {"window_bytes": 0, "state_bytes": 0, "whole_ratio": None},
}
# of a lane that was one method, with no list of rules: version 4 and before
_OF_A_RULE = ("method", "title", "summary", "knobs", "tensors", "layers", "sink_tokens", "recent_tokens", "center")


def _lane(told: Data) -> Data:
    rules = told.get("rules") or [{name: told[name] for name in _OF_A_RULE if name in told}]
    parts: Data = {name: {**LATER[name], **part} for name in ("metrics", "memory") if (part := told.get(name))}
    return {**LATER["lane"], **told, **parts, "rules": [{**LATER["rule"], **rule} for rule in rules]}


def upgrade(data: Any, what: str) -> Data:
    """Plain data of a record or a manifest of any known version as data of the newest; ``what`` names the run in
    messages.

    Raises StoreError for a version that is newer, or none at all, and for data that is not what its version says.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"{what} was written by another version (schema {str(version)[:20]}; this one reads 1 to "
            f"{SCHEMA_VERSION}). Open it with a newer version of the program, or run the comparison again."
        )
    return data if version == SCHEMA_VERSION else {**data, "schema_version": SCHEMA_VERSION}


def upgrade_record(data: Any, what: str) -> Data:
    """``upgrade`` of a record, with the fields that it has not. Raises StoreError."""
    current = upgrade(data, what)
    if current is data:
        return current
    try:
        current = {**LATER["record"], **current}
        floors = {name: current[name] and _lane(current[name]) for name in ("noise_floor", "kernel_floor")}
        parts = {name: {**LATER[name], **current[name]} for name in ("environment", "capture")}
        return {**current, **parts, **floors, "lanes": [_lane(told) for told in current["lanes"]]}
    except (KeyError, TypeError, AttributeError):
        raise StoreError(
            f"{what} is damaged: it lacks what schema {data['schema_version']} holds. Run the comparison again."
        ) from None
