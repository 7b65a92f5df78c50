"""The command line in a process of its own, and what it says where it refuses."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMPT = "Tell me about tides. " + "The sea came up the channel, pushed open the gates and filled the pond. " * 5
SPEC = {
    "prompt": PROMPT,
    "max_new_tokens": 6,
    "lanes": [{"label": "kivi2", "method": "kivi"}, {"label": "pt8", "method": "per_token", "knobs": {"bits": 8}}],
}


def cli(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvq_core", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=200,
    )


def refused(result: subprocess.CompletedProcess[str], *named: str) -> None:
    """Status 2, nothing on stdout, one line on stderr naming what it should."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1 and len(result.stderr) < 600, result.stderr
    assert result.stderr.strip().isprintable()
    for word in named:
        assert word in result.stderr
