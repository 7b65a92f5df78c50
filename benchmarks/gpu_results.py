"""Results in one file, a line a case, written as each is done: it is the archive, the table's source and where a later
call goes on. It is named after what decides its numbers, so that those of other kernels are never taken for these."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aot.fingerprint import kernels_fingerprint

SOURCES = Path(__file__).resolve().parent


def mark(facts: dict[str, Any]) -> str:
    """Of the kernels, of this benchmark, and of the versions that run them."""
    digest = hashlib.sha256(kernels_fingerprint().encode())
    for file in sorted(SOURCES.glob("gpu*.py")):
        digest.update(file.read_bytes())
    digest.update(f"{facts['torch']} {facts['triton']} {facts['cuda']}".encode())
    return digest.hexdigest()[:16]


class Results:
    """Lines of JSON: first what the file is about, then {case, card, copy_bandwidth, numbers}, the middle two of the
    machine that measured the case: another one of the same device may go on with a file."""

    def __init__(self, file: Path, facts: dict[str, Any] | None = None):
        self.file, self.facts = file, dict(facts or {})
        self._here = {name: self.facts.get(name) for name in ("card", "copy_bandwidth")}
        self.cases: dict[str, dict[str, Any]] = {}
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:  # the machine went while it was written
                continue
            if "case" in found:
                self.cases[found["case"]] = found["numbers"]
            else:
                self.facts = found
        if not lines and facts is not None:
            self._write(self.facts)

    def get(self, case: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is stored of a case, or what ``run`` finds, stored."""
        if case not in self.cases:
            numbers = run()
            self._write({"case": case, **self._here, "numbers": numbers})
            self.cases[case] = numbers
        return self.cases[case]

    def _write(self, line: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        torn = self.file.is_file() and not self.file.read_bytes().endswith(b"\n") and self.file.stat().st_size
        with self.file.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
