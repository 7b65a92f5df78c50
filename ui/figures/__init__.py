"""Pure functions from a record and its arrays to Plotly figures; nothing here knows Gradio."""

from ui.figures.bits import bit_map, stored_bytes
from ui.figures.damage import damage_grid, score_map
from ui.figures.drill import attention_rows, channel_errors, depth_error, sink_change
from ui.figures.spectra import cumulative_energy, head_spectra, joint_spectra
from ui.figures.subspace import deviation, error_inside, error_split
from ui.figures.texts import kld_strips

__all__ = [
    "attention_rows", "bit_map", "channel_errors", "cumulative_energy", "damage_grid", "depth_error", "deviation",
    "error_inside", "error_split", "head_spectra", "joint_spectra", "kld_strips", "score_map", "sink_change",
    "stored_bytes",
]  # fmt: skip
