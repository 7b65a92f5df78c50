"""The command line in this process, and a comparison to give it."""

import json
import subprocess
from pathlib import Path

import pytest

from kvq_core.cli.main import main


@pytest.fixture
def here(capfd):
    """``main`` in this process, with its output as a subprocess would give it."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as left:  # --help
            status = int(left.code or 0)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, status, out, err)

    return call


@pytest.fixture
def spec_file(tmp_path):
    def write(data, name="spec.json"):
        file = tmp_path / name
        file.write_text(data if isinstance(data, str) else json.dumps(data))
        return file

    return write
