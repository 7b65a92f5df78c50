"""``make bench-second``: what the second model costs before its first token, each step in a process of its own.

Its GGUF file is checked and converted into an empty KVQ_HOME, then the converted files are loaded and asked for one
token. Wall-clock time of the whole process, and the most memory that the converting one held.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, keep
from kvq_core.models import second
from kvq_core.models.gguf.folder import last
from kvq_core.models.gguf.published import TITLE

TARGETS = {"conversion_s": 240, "conversion_gb": 5, "first_token_s": 15}
FIRST_TOKEN = f"""
from benchmarks.main_job import generate
from kvq_core.models import load
model = load({second.SECOND_MODEL!r})
print(generate(model, model.render("Hello", None, True), 1))
"""


def timed(command: list[str], home: Path, file: Path) -> tuple[float, float]:
    """Seconds and GB at the peak of a Python process under that KVQ_HOME. Raises SystemExit where it fails."""
    variables = {"KVQ_HOME": str(home), "KVQ_SECOND_MODEL": str(file), "PYTHONPATH": str(HERE.parent)}
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *command], env=os.environ | variables, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)[:80]} failed: {os.waitstatus_to_exitcode(status)}.")
    return time.perf_counter() - began, usage.ru_maxrss / 1e6


def measure(repeats: int) -> dict[str, Any]:
    file = second.local_file() or last(second.download_second())
    with tempfile.TemporaryDirectory(prefix="kvq-home-") as folder:
        home = Path(folder)
        seconds, memory = timed(["-m", "kvq_core.cli.second_model"], home, file)
        starts = [timed(["-c", FIRST_TOKEN], home, file)[0] for _ in range(repeats)]
    return {
        "model": TITLE,
        "bytes": second.SIZE,
        "cores": os.cpu_count(),
        "conversion": {"seconds": seconds, "peak_memory_gb": memory},
        "first_token_s": min(starts),
        "targets": TARGETS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="of the first token; the best one counts")
    parser.add_argument("--out", type=Path, default=HERE / "second_model.json")
    args = parser.parse_args()
    result = measure(args.repeats)
    keep(args.out, second.SECOND_MODEL, result)
    made = result["conversion"]
    print(f"conversion    {made['seconds']:7.1f} s   {made['peak_memory_gb']:.2f} GB at its peak")
    print(f"first token   {result['first_token_s']:7.1f} s")


if __name__ == "__main__":
    main()
