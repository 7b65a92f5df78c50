"""A model looked at before any run: its cache's shape, what each format of it costs, and which layers are at risk.

Imports models, methods, engine, capture and metrics, which compute a lane, and analysis, presets, sizing and spec; no
record of a run. Start at ``look``; thresholds and what is published about families are data in ``presets/inspection``.
"""

from kvq_core.inspection.look import inspect_model
from kvq_core.inspection.report import Inspection

__all__ = ["Inspection", "inspect_model"]
