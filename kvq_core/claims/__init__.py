"""The papers' claims measured on a model: criteria from ``presets/claims``, numbers from captured prompts.

Imports pipeline, training and everything below them; the page sees ``board`` and ``side_by_side``. Start at
``measure``.
"""

from kvq_core.claims.criteria import ClaimSetting, Paper, paper, papers, setting
from kvq_core.claims.measure import measure_board, measure_missing

__all__ = ["Paper", "ClaimSetting", "measure_board", "measure_missing", "paper", "papers", "setting"]
