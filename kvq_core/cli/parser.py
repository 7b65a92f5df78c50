"""The command line's parser: errors in one line, and the program named as it was called."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from kvq_core.errors import SpecError, abbreviate

MODULE = "python -m kvq_core"  # as documents and examples have it
SCRIPT = "kvq-explorer"


def program() -> str:
    """What a person types to run this: the installed script, else the module."""
    return SCRIPT if Path(sys.argv[0]).stem == SCRIPT else MODULE


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one line; its examples name the program that was called."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(f"{abbreviate(message, 300)}. See: {self.prog} --help")

    def format_help(self) -> str:
        return super().format_help().replace(MODULE, program())
