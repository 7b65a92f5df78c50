"""Pure functions from a record and its arrays to Plotly figures, one module a view; nothing here knows Gradio.

Imports records, conclusions from them and html's colours and numbers. Start at ``base``.
"""

from ui.figures.bits import bit_map, stored_bytes
from ui.figures.confidence import confidence, confidence_rows
from ui.figures.damage import damage_grid, score_map
from ui.figures.drill import attention_rows, channel_errors, depth_error, sink_change
from ui.figures.grid import format_grid
from ui.figures.pairs import key_pairs
from ui.figures.prompt import prompt_kld
from ui.figures.rate import distortion_rate
from ui.figures.spectra import (
    cumulative_energy,
    distributions,
    effective_rank,
    head_spectra,
    joint_spectra,
    lane_spectra,
    mean_shares,
)
from ui.figures.subspace import angles, deviation, error_inside, error_split
from ui.figures.texts import kld_strips
from ui.figures.usage import bits_by_length, code_usage, latent_bits, shares

__all__ = [
    "angles",
    "attention_rows",
    "bit_map",
    "bits_by_length",
    "channel_errors",
    "code_usage",
    "confidence",
    "confidence_rows",
    "cumulative_energy",
    "damage_grid",
    "depth_error",
    "deviation",
    "distortion_rate",
    "distributions",
    "effective_rank",
    "error_inside",
    "error_split",
    "format_grid",
    "head_spectra",
    "joint_spectra",
    "key_pairs",
    "kld_strips",
    "lane_spectra",
    "latent_bits",
    "mean_shares",
    "prompt_kld",
    "score_map",
    "shares",
    "sink_change",
    "stored_bytes",
]
