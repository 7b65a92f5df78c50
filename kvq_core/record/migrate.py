"""Runs of older versions of the record, brought up to today's fields when they are read; files are never rewritten.

SCHEMA_VERSION is raised whenever a field of the record or of the manifest comes, goes or changes its meaning, and a
step is added here. A step is a pure function from plain data of version n to plain data of version n + 1.

Version 1: the first months. Fields were added without raising it, all of them with a default, so a record of version 1
may or may not have the fields that ``_record_1`` fills in. What such a run did not measure stays absent.

Version 2: an environment named the model by its weights alone.

Version 3: an environment did not say how a GGUF file held the weights, nor a lane on what its keys are centred; there
were no models from such files, and no such lanes.

Version 4: a lane was one method, with no list of rules, whose keys nothing turned; all lanes read the prompt in full
precision, which was one turn, and only answers were scored. Neither draft acceptance nor the floor of another kernel
was measured.

Version 5: no lane chose the keys it reads but by its method.

Version 6: no run had a parent; every batch had a reference row; lanes were scored against their own model alone; the
bytes of its file were not told.
"""

from collections.abc import Callable
from typing import Any

from kvq_core.errors import StoreError
from kvq_core.record.fields import SCHEMA_VERSION

Step = Callable[[dict[str, Any]], dict[str, Any]]

_LATER_OF_CAPTURE: dict[str, Any] = {
    "attention_steps": [],
    "sink_tokens": 0,
    "depth_edges": [],
    "distribution_layers": [],
    "quantiles": [],
    "angle_ranks": [],
    "subspace_texts": {},
    "seconds": 0.0,
    "seconds_decoding": 0.0,
}


def _record_1(data: dict[str, Any]) -> dict[str, Any]:
    def lane(told: dict[str, Any]) -> dict[str, Any]:
        metrics = told.get("metrics")
        return {**told, "metrics": metrics and {"output_error": None, "output_bound": None, **metrics}}

    return {
        "stress": None,
        "vocabulary": {},
        **data,
        "noise_floor": lane(data["noise_floor"]),
        "lanes": [lane(told) for told in data["lanes"]],
        "capture": {**_LATER_OF_CAPTURE, **data["capture"]},
    }


def _unchanged(data: dict[str, Any]) -> dict[str, Any]:
    return data


def _record_2(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "environment": {"model_hash": None, **data["environment"]}}


def _record_3(data: dict[str, Any]) -> dict[str, Any]:
    def lane(told: dict[str, Any]) -> dict[str, Any]:
        return {"center": "none", **told}

    return {
        **data,
        "environment": {"quantization": None, **data["environment"]},
        "noise_floor": lane(data["noise_floor"]),
        "lanes": [lane(told) for told in data["lanes"]],
    }


_LATER_OF_METRICS: dict[str, Any] = {"acceptance": None, "tokens_a_step": None, "prompt": None, "turns": []}
_OF_A_RULE = ("method", "title", "summary", "knobs", "tensors", "layers", "sink_tokens", "recent_tokens", "center")


def _record_4(data: dict[str, Any]) -> dict[str, Any]:
    def lane(told: dict[str, Any]) -> dict[str, Any]:
        plain = {"rotate": "none", "rotate_block": None}
        rule = {**plain, **{name: told[name] for name in _OF_A_RULE if name in told}}
        metrics = told.get("metrics")
        metrics = metrics and {**_LATER_OF_METRICS, **metrics}
        return {**plain, "rules": [rule], "prefill": "full", **told, "metrics": metrics}

    return {
        "kernel_floor": None,
        **data,
        "noise_floor": lane(data["noise_floor"]),
        "lanes": [lane(told) for told in data["lanes"]],
    }


def _record_5(data: dict[str, Any]) -> dict[str, Any]:
    def lane(told: dict[str, Any]) -> dict[str, Any]:
        return {"select": None, **told}

    floor = data["kernel_floor"] and lane(data["kernel_floor"])
    lanes = [lane(told) for told in data["lanes"]]
    return {**data, "noise_floor": lane(data["noise_floor"]), "kernel_floor": floor, "lanes": lanes}


def _record_6(data: dict[str, Any]) -> dict[str, Any]:
    def lane(told: dict[str, Any]) -> dict[str, Any]:
        rules = [{"sliding": False, **rule} for rule in told["rules"]]
        beside = {"window_bytes": 0, "state_bytes": 0, "whole_ratio": None}
        memory = told.get("memory")
        return {"sliding": False, **told, "rules": rules, "memory": memory and {**beside, **memory}}

    floor = data["kernel_floor"] and lane(data["kernel_floor"])
    found = {"noise_floor": lane(data["noise_floor"]), "kernel_floor": floor, "lanes": list(map(lane, data["lanes"]))}
    environment = dict.fromkeys(("kinds", "weights_bytes", "reference")) | {"reference_apart": False}
    return {"parent": None, **data, **found, "environment": environment | data["environment"]}


def _record_7(data: dict[str, Any]) -> dict[str, Any]:
    def lane(told: dict[str, Any]) -> dict[str, Any]:
        return {"fold": "none", **told, "rules": [{"fold": "none", **rule} for rule in told["rules"]]}

    floor = data["kernel_floor"] and lane(data["kernel_floor"])
    lanes = [lane(told) for told in data["lanes"]]
    return {**data, "noise_floor": lane(data["noise_floor"]), "kernel_floor": floor, "lanes": lanes}


_STEPS = (_record_1, _record_2, _record_3, _record_4, _record_5, _record_6, _record_7)
RECORD_STEPS: dict[int, Step] = dict(enumerate(_STEPS, 1))
MANIFEST_STEPS: dict[int, Step] = dict.fromkeys(RECORD_STEPS, _unchanged)


def upgrade(data: Any, steps: dict[int, Step], what: str, newest: int = SCHEMA_VERSION) -> dict[str, Any]:
    """Plain data of any known version as data of the newest; ``what`` names the run in messages.

    Raises StoreError for a version that is newer, or none at all, and for data that is not what its version says.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or not 1 <= version <= newest:
        raise StoreError(
            f"{what} was written by another version (schema {str(version)[:20]}; this one reads 1 to {newest}). "
            "Open it with a newer version of the program, or run the comparison again."
        )
    try:
        for n in range(version, newest):
            data = {**steps[n](data), "schema_version": n + 1}
    except (KeyError, TypeError, AttributeError):
        raise StoreError(
            f"{what} is damaged: it lacks what schema {version} holds. Run the comparison again."
        ) from None
    return data  # type: ignore[no-any-return]
