"""Ready comparisons (``ready``), and lanes that answer one question together (``bundles``), some of them solved for a
budget of bytes (``equal``).

Imports spec, sizing, methods and complaints. Start at ``ready``, for specs that name a bundle at ``read``.
"""

from kvq_core.presets.bundles import BUNDLES, bundle_lanes
from kvq_core.presets.read import bundle_of, parse_placed, read_spec, with_bundle
from kvq_core.presets.ready import FOLDER, Preset, errors_named, preset, presets

__all__ = [
    "BUNDLES",
    "FOLDER",
    "Preset",
    "bundle_lanes",
    "bundle_of",
    "errors_named",
    "parse_placed",
    "preset",
    "presets",
    "read_spec",
    "with_bundle",
]
