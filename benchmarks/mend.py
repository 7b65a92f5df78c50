"""A model's file mended for a format and a context, and what that gains here and in llama.cpp. Writes ``mend.json``.

    python benchmarks/mend.py FILE --for q4_0 --context 4096 --out MENDED [--no-verify]
    python benchmarks/mend.py FILE --for q4_0 --context 4096 --told TOLD

``--told`` takes what ``python -m kvq_core mend ... --json`` printed. Times are of the machine it ran on, whatever else
that did.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, keep

RESULTS = HERE / "mend.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--for", dest="form", default="q4_0")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--told", type=Path)
    given = parser.parse_args()
    began = time.perf_counter()
    if given.told is None:
        asked = [
            str(given.file),
            "--for",
            given.form,
            "--context",
            str(given.context),
            "--out",
            str(given.out),
            "--json",
        ]
        asked += [] if given.no_verify else ["--verify"]
        command = [sys.executable, "-m", "kvq_core", "mend", *asked]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent).stdout
    else:
        text = given.told.read_text()
    told = json.loads(text) | {"file": given.file.name, "seconds": None if given.told else time.perf_counter() - began}
    told.pop("out")
    told.pop("backup")
    alone = ", biases alone" if told["biases"] and not told["folded"] else ""
    keep(RESULTS, f"{given.file.stem}, {told['format']}, {told['context']}{alone}", told)


if __name__ == "__main__":
    main()
