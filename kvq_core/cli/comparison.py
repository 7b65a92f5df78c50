"""The comparison a command is about: a preset or a file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvq_core.spec import ComparisonSpec


def add_comparison(parser: argparse.ArgumentParser, preset: str) -> None:
    """Ask for a comparison; ``preset`` is what help says of that option."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--preset", metavar="NAME", help=preset)
    source.add_argument("--spec", metavar="FILE", type=Path, help="a comparison as .toml or .json")
    parser.add_argument("--bundle", metavar="NAME", help="its lanes instead, such as deploy or grid; grid:FAMILY")


def comparison(arguments: argparse.Namespace) -> "ComparisonSpec":
    """The comparison that was asked for. Raises SpecError where there is none."""
    from kvq_core.pipeline.solved import cache_at
    from kvq_core.presets import preset, read_spec, with_bundle

    spec = preset(arguments.preset).spec if arguments.preset is not None else read_spec(arguments.spec, cache_at)
    return spec if arguments.bundle is None else with_bundle(spec, arguments.bundle, cache_at)


def losses(arguments: argparse.Namespace) -> tuple[float, ...]:
    """The mean KLD within which each family's fewest bits are told: the usual ones, and that of a bundle equal-loss.
    Of a comparison that has been read."""
    from kvq_core.analysis.within import LOSSES
    from kvq_core.presets import bundle_of
    from kvq_core.spec import read_data

    bundle = None if arguments.bundle is None else bundle_of(arguments.bundle)
    if bundle is None and arguments.spec is not None:
        bundle = read_data(arguments.spec).get("bundle")
    asked = bundle.get("kld") if isinstance(bundle, dict) else None
    return LOSSES if asked is None else tuple(sorted({*LOSSES, float(asked)}))
