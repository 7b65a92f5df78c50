"""``--method-file``: methods of one's own, for the commands that run or list methods."""

import argparse
from pathlib import Path


def add_method_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--method-file",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a Python file that defines methods; may be given again",
    )


def load_files(arguments: argparse.Namespace) -> None:
    """Load the files a command was given, after those the environment names. Raises SpecError where one cannot be."""
    given: list[Path] | None = getattr(arguments, "method_file", None)
    if given is None:  # a command that has nothing to do with methods
        return
    from kvq_core.methods import load_method_files
    from kvq_core.settings import settings

    load_method_files([*settings().method_files, *given])
