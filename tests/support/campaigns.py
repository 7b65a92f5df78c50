"""Campaigns: tests marked ``long``, of which ``make test`` runs a sample and ``make test-long`` everything.

A sample is fewer inputs where the test itself asks ``whole``, or as many of its cases as its mark tells, which may be
none: conftest.py leaves out the others.

Of two of them everything runs wherever a change is to land (.ci/run), because they are about whole ways through the
project, though few: ``journey`` through the page, ``programs`` beside it, in processes of their own, and long runs of
real models.

``make test-long`` writes what came of it, with the day and a hash of the sources, into benchmarks/campaigns.json: only
where every campaign ran whole and passed. ``CAMPAIGN=kill``, or several names, runs and writes these alone; what stands
there of the others stays.
"""

import functools
import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "campaigns.json"
# The sources that each campaign is about.
CAMPAIGNS = {
    "kill": (
        "kvq_core/record",
        "kvq_core/machine/files.py",
        "tests/support/kill_points.py",
        "tests/core/record/test_store_kill.py",
        "kvq_core/studies",
        "tests/support/study_kills.py",
        "tests/core/studies/test_study_kill.py",
    ),
    "fuzz": ("kvq_core", "ui", "tests/core", "tests/support/damage.py"),
    "compile": ("kernels/kvq_kernels", "benchmarks/aot", "tests/support/kernel_launches.py", "tests/triton"),
    "interpret": ("kernels/kvq_kernels", "tests/kernels", "tests/triton"),
    "combine": ("kvq_core", "kernels/kvq_kernels", "tests/support", "tests/core"),
    "page": ("app.py", "ui", "kvq_core", "tests/browser"),
    "journey": ("app.py", "ui", "kvq_core", "tests/browser"),
    "programs": ("benchmarks/llama_cpp.py", "kvq_core", "ui", "tests/core", "tests/ui"),
    "attack": ("app.py", "ui", "kvq_core", "tests/support/attacks.py", "tests/ui/server/test_attack.py"),
}
_SOURCES = {".py", ".js", ".css", ".toml"}
_TIMES = 100  # as many inputs as a sample has


def whole() -> bool:
    """Whether everything is to run, not a sample."""
    return bool(os.environ.get("LONG"))


def inputs(sample: int) -> Callable[[Callable], Callable]:
    """Marks a fuzzed test, which gets so many inputs in a sample."""

    def marked(test: Callable) -> Callable:
        return pytest.mark.long("fuzz")(settings(max_examples=sample * (_TIMES if whole() else 1))(test))

    return marked


def pairs(many: Iterable, few: Iterable) -> list[tuple[Any, Any]]:
    """Each of ``many`` with each of ``few``; in a sample with one of them, in turn."""
    return list(itertools.product(many, few)) if whole() else list(zip(many, itertools.cycle(few), strict=False))


def hash_of(places: tuple[str, ...]) -> str:
    """Of the names and bytes of all sources there."""
    digest = hashlib.sha256()
    for place in places:
        found = (file for file in (ROOT / place).rglob("*") if file.suffix in _SOURCES)
        for file in sorted(found) or [ROOT / place]:
            data = file.read_bytes()
            digest.update(f"{file.relative_to(ROOT).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]


class Ledger:
    """Plugin of pytest that counts what campaigns did, also where workers run them, and writes it down at the end."""

    def __init__(self, config: pytest.Config, file: Path = RESULTS):
        self.config, self.file = config, file
        self.chosen = os.environ.get("CAMPAIGN", "").split() or list(CAMPAIGNS)
        if unknown := set(self.chosen) - set(CAMPAIGNS):
            raise pytest.UsageError(f"CAMPAIGN = {' '.join(sorted(unknown))} is none of {', '.join(CAMPAIGNS)}.")
        self.done: dict[str, Counter[str]] = {}
        self.left_out = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        campaigns = [item.get_closest_marker("long") for item in items]
        items[:] = [
            item for item, found in zip(items, campaigns, strict=True) if found and found.args[0] in self.chosen
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        tried = _counted(item.obj.hypothesis) if hasattr(item.obj, "hypothesis") else []
        try:
            return (yield)
        finally:
            if marker := item.get_closest_marker("long"):
                item.user_properties += [("campaign", marker.args[0]), ("inputs", len(tried))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties)
        self.left_out |= report.skipped
        if report.when == "call" and "campaign" in found:
            counts = self.done.setdefault(found.pop("campaign"), Counter(tests=0))
            counts["tests"] += 1
            counts.update({name: value for name, value in found.items() if value and isinstance(value, int)})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        chosen, option = self.config.args_source, self.config.option
        everything = chosen is pytest.Config.ArgsSource.TESTPATHS and option.markexpr == "long"
        fewer = option.keyword or option.deselect or option.ignore or option.ignore_glob or getattr(option, "lf", False)
        if hasattr(self.config, "workerinput") or exitstatus or self.left_out or fewer or not everything:
            return
        if set(self.done) == set(self.chosen):
            day = datetime.now(UTC).date().isoformat()
            before = json.loads(self.file.read_text()) if self.file.exists() else {}
            new = {name: {"date": day, "sources": hash_of(CAMPAIGNS[name]), **self.done[name]} for name in self.done}
            found = {name: (before | new)[name] for name in CAMPAIGNS if name in before | new}
            self.file.write_text(json.dumps(found, indent=2) + "\n")


def _counted(test: object) -> list[None]:
    """Grows by one with every input that the test of a hypothesis is given."""
    tried: list[None] = []
    inner = test.inner_test

    @functools.wraps(inner)
    def call(*arguments, **named):
        tried.append(None)
        return inner(*arguments, **named)

    test.inner_test = call
    return tried
