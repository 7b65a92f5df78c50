"""A lane's options as a record keeps them: under the names and defaults that the spec declares.

Their types are as wide as JSON's, so that a run opens whose choice is none any more.
"""

from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model

from kvq_core.record.prompt_fields import RecordPart
from kvq_core.spec import LANE_OPTIONS, READ_OPTIONS, LaneOptions, RuleOptions

_PLAIN = {bool, int, float, str, NoneType}
_ALWAYS = ("tensors", "layers", "sink_tokens", "recent_tokens")  # every run tells them; of others it may know nothing


def _recorded(declared: type[BaseModel], names: tuple[str, ...]) -> Any:
    """Options as a part of records."""
    fields: Any = {
        name: (_wide(field.annotation), ... if name in _ALWAYS else field.default)
        for name in names
        if (field := declared.model_fields[name])
    }
    return create_model(f"Recorded{declared.__name__}", __base__=RecordPart, __module__=__name__, **fields)


def _wide(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return str
    return kind if {*(get_args(kind) or (kind,))} <= _PLAIN else Any


if TYPE_CHECKING:

    class RecordedRuleOptions(RuleOptions):
        model_config = ConfigDict(frozen=False)

    class RecordedLaneOptions(LaneOptions):
        model_config = ConfigDict(frozen=False)

else:
    RecordedRuleOptions = _recorded(RuleOptions, LANE_OPTIONS)
    RecordedLaneOptions = _recorded(LaneOptions, READ_OPTIONS)
