"""``python -m kvq_core check-method``: a method against the contract, a line a check."""

import argparse
from dataclasses import asdict
from pathlib import Path

from kvq_core.cli.output import as_json
from kvq_core.cli.own import add_method_files
from kvq_core.errors import SpecError

EXAMPLES = "python -m kvq_core check-method --method-file my.py\n  python -m kvq_core check-method kivi --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method; without it, all of the files named")
    add_method_files(parser)


def check_command(arguments: argparse.Namespace) -> int:
    """Print the checks of one method, or of those that the files define. 1 where one fails."""
    from kvq_core.packed.contract import Check, check_method

    names = _asked(arguments.name, arguments.method_file)
    found: dict[str, list[Check]] = {}
    for name in names:
        found[name] = []
        for each in check_method(name):
            found[name].append(each)
            if not arguments.json:
                print(f"{name}: {each.outcome:<4} {each.name}{f': {each.said}' if each.said else ''}", flush=True)
    if arguments.json:
        print(as_json({name: [asdict(each) for each in checks] for name, checks in found.items()}))
    return int(any(each.outcome == "FAIL" for checks in found.values() for each in checks))


def _asked(name: str | None, files: list[Path]) -> list[str]:
    """Raises SpecError where neither a method nor a file is named."""
    from kvq_core.methods import load_method_file

    if name is not None:
        return [name]
    if not files:
        raise SpecError("Name a method, or a file that defines some with --method-file.")
    return [each for file in files for each in load_method_file(file)]  # loaded already: their names
