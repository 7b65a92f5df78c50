"""``python -m kvq_core embed``: one figure of a stored run as a page that needs no server.

The page's own program draws it (``python -m ui.export``): the core knows no figures, so it hands over.
"""

import argparse
import os
import subprocess
import sys

from kvq_core.errors import SpecError
from kvq_core.shipped import root

EXAMPLES = (
    "python -m kvq_core embed 0123456789abcdef --view kld > kld.html\n"
    "  python -m kvq_core embed 0123456789abcdef --view rate --link https://example.org > rate.html\n"
    "  python -m kvq_core embed 0123456789abcdef --view scores --layer 12 --head 6 > scores.html\n"
    "  python -m kvq_core embed 0123456789abcdef --view words --token 25 --lane KIVI > words.html"
)
NAMES = "kld, rate, rate-flips, rate-keys, rate-values, rate-output, confidence, bytes, keys, values or rank"
SELECTED = (
    "scores, attention, sinks, key-channels, value-channels, depth, means, spectra, pairs, key-spread or latent-spread"
)
READ = "words or replay"
PLACE = {"layer": "layer", "head": "query head", "token": "token of the answer"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN_ID", help="id of a stored run, or of one that ships")
    parser.add_argument(
        "--view",
        default="kld",
        help=f"which figure: {NAMES} (kld); of what is selected: {SELECTED}; what is read there: {READ}",
    )
    for name, what in PLACE.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} that a figure of what is selected shows")
    parser.add_argument("--lane", default="", metavar="LABEL", help="lane whose words are shown (the worst)")
    parser.add_argument("--link", default="", help="address that its title leads to")
    parser.set_defaults(command=embed, at_once=lambda arguments: True)


def embed(arguments: argparse.Namespace) -> int:
    """Have the page's program print the figure. Raises SpecError where the page is not installed."""
    given = [arguments.run, "--view", arguments.view, "--link", arguments.link]
    given += [f"--lane={arguments.lane}"] if arguments.lane else []
    return draw(given + [f"--{name}={at}" for name in PLACE if (at := getattr(arguments, name)) is not None])


def draw(given: list[str]) -> int:
    """Hand over to the page's program, whose output and exit status are the command's. Raises SpecError where the page
    is not installed."""
    if not (root() / "ui").is_dir():
        raise SpecError("The folder ui, which draws figures, is not here: run this in a copy of the whole project.")
    paths = os.pathsep.join(filter(None, (str(root()), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "ui.export", *given], check=False, env={**os.environ, "PYTHONPATH": paths}
    ).returncode
