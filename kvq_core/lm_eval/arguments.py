"""A lane from the arguments of lm-eval's ``--model_args``."""

from typing import Any

from kvq_core.spec import Lane, parse_lane


def read_lane(method: str | None = None, prefill_chunk: int | None = None, own_chunk: str = "raw", **more: Any) -> Lane:
    """What is no field of a lane is a knob of its method, which is fp16 where neither it nor rules are given.

    Raises SpecError for a lane that is not possible.
    """
    fields = {name: more.pop(name) for name in [*more] if name in Lane.model_fields}
    if prefill_chunk is not None:
        fields["prefill"] = {"chunk": prefill_chunk, "own_chunk": own_chunk}
    if "rules" not in fields or method is not None:
        fields["method"] = method or "fp16"
    return parse_lane({**fields, **({"knobs": more} if more else {})})
