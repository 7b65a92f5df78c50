"""Everything that decides a run, as written in files, links, the form and the API: ``comparison``, its ``lane``, a
lane's ``rule``, and ``options``, which both have; ``read`` takes plain data and files, and refuses what is not possible
in one line.

Imports methods, errors and complaints. Start at ``comparison``.
"""

from kvq_core.spec.assignment import Assignment
from kvq_core.spec.comparison import (
    DEFAULT_MODEL,
    MAX_LANES,
    Capture,
    ComparisonSpec,
    Stress,
    canonical_json,
    with_labels,
)
from kvq_core.spec.conversation import Message, Tool, tool_name
from kvq_core.spec.functions import from_function
from kvq_core.spec.lane import Lane
from kvq_core.spec.layers import layer_words
from kvq_core.spec.options import (
    LANE_OPTIONS,
    READ_OPTIONS,
    WORDS,
    Centering,
    Folding,
    LaneOptions,
    Rotation,
    RuleOptions,
    subtitle,
)
from kvq_core.spec.plan import rules_for
from kvq_core.spec.prefill import Chunks, in_words
from kvq_core.spec.read import parse_lane, parse_rule, parse_spec, read_data
from kvq_core.spec.rule import TENSORS, Rule, Tensor
from kvq_core.spec.transforms import Transforms

__all__ = [
    "DEFAULT_MODEL",
    "LANE_OPTIONS",
    "MAX_LANES",
    "READ_OPTIONS",
    "TENSORS",
    "WORDS",
    "Assignment",
    "Capture",
    "Centering",
    "Folding",
    "Chunks",
    "ComparisonSpec",
    "Lane",
    "LaneOptions",
    "Message",
    "Rotation",
    "Rule",
    "RuleOptions",
    "Stress",
    "Tensor",
    "Tool",
    "Transforms",
    "canonical_json",
    "from_function",
    "in_words",
    "layer_words",
    "parse_lane",
    "parse_rule",
    "parse_spec",
    "read_data",
    "rules_for",
    "subtitle",
    "tool_name",
    "with_labels",
]
