"""Everything that decides a run, as written in files, links, the form and the API: ``comparison`` and its ``lane``;
``read`` takes plain data and files, and refuses what is not possible in one line.

Imports methods, errors and complaints. Start at ``comparison``.
"""

from kvq_core.spec.comparison import DEFAULT_MODEL, MAX_LANES, Capture, ComparisonSpec, Stress
from kvq_core.spec.lane import LANE_OPTIONS, Centering, Lane
from kvq_core.spec.prefill import Chunks
from kvq_core.spec.read import parse_lane, parse_spec, read_spec

__all__ = [
    "DEFAULT_MODEL",
    "LANE_OPTIONS",
    "MAX_LANES",
    "Capture",
    "Centering",
    "Chunks",
    "ComparisonSpec",
    "Lane",
    "Stress",
    "parse_lane",
    "parse_spec",
    "read_spec",
]
