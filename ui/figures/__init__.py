"""Pure functions from a record and its arrays to Plotly figures; nothing here knows Gradio."""

from ui.figures.bits import bit_map, stored_bytes
from ui.figures.damage import damage_overview, score_map
from ui.figures.spectra import cumulative_energy, head_spectra, joint_spectra
from ui.figures.subspace import deviation, error_inside, error_split

__all__ = [
    "bit_map", "cumulative_energy", "damage_overview", "deviation", "error_inside", "error_split", "head_spectra",
    "joint_spectra", "score_map", "stored_bytes",
]  # fmt: skip
