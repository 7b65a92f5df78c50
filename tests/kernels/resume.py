"""A run that goes on after the last test that passed, on machines that come for minutes."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest


def fingerprint(device: str, folders: Iterable[Path]) -> str:
    """Changes with ``device``, which names the versions too, and with every source file."""
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return hashlib.sha256(b"\0".join([device.encode(), *(file.read_bytes() for file in files)])).hexdigest()


class Resume:
    """A pytest plugin. ``record``: the fingerprint in its first line, then the tests that passed with it.

    After a run in which nothing failed the record is gone, so that the next one begins anew.
    """

    def __init__(self, record: Path, mark: str):
        self.record, self.mark = record, mark

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        lines = self.record.read_text().splitlines() if self.record.is_file() else []
        passed = set(lines[1:]) if lines[:1] == [self.mark] else set()
        left = [item for item in items if item.nodeid not in passed]
        if not passed or not left:
            self.record.write_text(f"{self.mark}\n")
            return
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = left

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self.record.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            self.record.unlink(missing_ok=True)
