"""Other versions of Triton beside the installed one, each in a folder of its own that is made when first asked for.

A folder holds the wheel alone. Before the environment's own packages on the path it stands in for the installed one,
with the same torch, because compiling ahead of time needs nothing else that belongs to a version.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.aot.compiler import kept_in

REPORT = Path(__file__).with_name("report.py")


class Unavailable(Exception):
    """A version that pip does not give here; the message says what it said."""


def folder_of(version: str) -> Path:
    """Where Triton of a version such as 3.4 lies, or of the ``newest``, fetched if it is not there yet.

    Raises Unavailable.
    """
    folder = kept_in() / "triton" / (_newest() if version == "newest" else version)
    if not (folder / "triton").is_dir():
        aside = folder.with_name(f"{folder.name}.{os.getpid()}")
        _pip("install", "--no-deps", "--only-binary=:all:", "--target", str(aside), f"triton=={folder.name}.*")
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    return folder


def under(version: str, arguments: list[str]) -> int:
    """The report with a version of Triton, in a process of its own; its exit status.

    Raises Unavailable.
    """
    return subprocess.run([sys.executable, REPORT, *arguments], env=environment(version)).returncode


def environment(version: str) -> dict[str, str]:
    """In which Python finds that version."""
    paths = [str(folder_of(version)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _newest() -> str:
    """Major and minor number of the newest that there is."""
    if found := re.search(r"triton \((\d+\.\d+)", _pip("index", "versions", "triton")):
        return found[1]
    raise Unavailable("pip does not say which Triton is the newest")


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable((done.stderr.strip() or "pip failed").splitlines()[-1])
    return done.stdout
