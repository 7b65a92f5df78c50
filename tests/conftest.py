"""What tests share: no network, a store of their own, the real model, a sample run, and the browser."""

from __future__ import annotations

import atexit
import gc
import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:  # the process that only hands out tests needs neither
    import torch

    from kvq_core.record.fields import Record

# Collecting imports all libraries and makes objects that live to the end: looking for garbage among them, then and
# again with every full collection, took a fifteenth of the time of all tests.
gc.disable()

# the same examples every time: a test that fails only on some days teaches people to run it again
hypothesis_settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis_settings.load_profile("repeatable")
hypothesis_settings.register_profile("quick", hypothesis_settings.get_profile("repeatable"), max_examples=12)

# The first is Chromium without its windows, which takes a tenth less of a core for the same page.
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Workers take whole groups of tests in the order collected: a file each, and all files that share a server, a browser
# or a run. Those that take longest come first.
_SERVED = "browser"
# How the names of files begin that share what their conftest makes once, or the sources that they parse.
_TOGETHER = (("ui/api/",), ("test_imports.py", "test_sizes.py"))
# served by the worker itself
_APART = tuple(
    f"browser/test_{name}.py"
    for name in ("acting", "form", "keeping", "lanes", "late", "late_acts", "reading_words", "runs", "span", "waiting")
)
LONGEST = (
    _SERVED,
    "core/servers/test_llama_cpp.py",
    "browser/test_form.py",
    "browser/test_keeping.py",
    "browser/test_waiting.py",
    "triton/test_kernels_triton.py",
    "triton/test_kernels_aot.py",
    "browser/test_acting.py",
    "browser/test_span.py",
    "browser/test_reading_words.py",
    "triton/test_kernels_generate.py",
    "core/packed/test_packed_methods.py",
    "core/packed/test_contract.py",
    "core/pipeline/test_run.py",
    "core/packed/test_packed_generate.py",
    "core/packed/test_packed.py",
    "core/cli/test_cli_interrupts.py",
    "core/cli/test_cli_runs.py",
    "ui/api/",
    "ui/server/test_zero_gpu.py",
    "core/engine/test_chunks.py",
    "core/engine/test_engine.py",
    "test_docs.py",
    "test_docs_methods.py",
    "test_dependencies.py",
    "browser/test_lanes.py",
    "browser/test_runs.py",
    "core/analysis/test_explain.py",
    "core/methods/test_every_method.py",
    "core/presets/test_presets.py",
    "ui/panels/test_share_files.py",
    "ui/service/test_memory.py",
    "benchmarks/test_gpu_benchmark.py",
)

HELD = pytest.StashKey[dict]()  # the model in memory before a test
_PAGES = pytest.StashKey[bool]()  # whether pages were open in this process, which load the model whenever they like


def find_chromium() -> str | None:
    """Path of an installed Chromium; CHROMIUM overrides."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser; tests that use it are marked ``browser``."""
    path = find_chromium()
    assert path is not None
    return path


def pytest_configure(config: pytest.Config) -> None:
    if re.match(r"not \(.*\bslow\b", config.option.markexpr):  # make test-fast: an eighth of what make test tries
        hypothesis_settings.load_profile("quick")
    if config.option.markexpr == "long":
        os.environ["LONG"] = "1"  # before tests are imported, and for the workers
        from tests.support.campaigns import Ledger

        config.pluginmanager.register(Ledger(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_group(item.nodeid), len(places)))
    for item in items:
        for name in ("real_model", "second_model"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)
        if item.get_closest_marker("browser") and os.environ.get("KVQ_REQUIRE_BROWSER"):
            # A page on a busy machine: once more, and the end of the tests names it. Elsewhere the first try counts.
            item.add_marker(pytest.mark.flaky(reruns=1))
    for same, count in _cases_of("few", items):
        for item in set(same) - _spread(same, count):
            item.add_marker("slow")
    if not os.environ.get("LONG"):
        left = {item for same, count in _cases_of("long", items) for item in set(same) - _spread(same, count)}
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    if find_chromium() is None and not os.environ.get("KVQ_REQUIRE_BROWSER"):
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="no Chromium found"))


def _cases_of(mark: str, items: list[pytest.Item]) -> Iterator[tuple[list[pytest.Item], int]]:
    """The cases of each test whose mark tells the size of a sample, with that size."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (found := item.get_closest_marker(mark)) and "sample" in found.kwargs:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    for same in cases.values():
        yield same, min(len(same), same[0].get_closest_marker(mark).kwargs["sample"])


def _spread(same: list[pytest.Item], count: int) -> set[pytest.Item]:
    """So many of them, from all over."""
    return {same[at * len(same) // count] for at in range(count)}


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    # extension modules tell of what outlives the interpreter; not earlier, as pytest collects ten times when it ends
    atexit.register(gc.unfreeze)


def _group(node: str) -> str:
    file = node.split("::")[0].removeprefix("tests/")
    if file.startswith(f"{_SERVED}/") and file not in _APART:
        return _SERVED
    return next((starts[0] for starts in _TOGETHER if file.startswith(starts)), file)


class _Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Groups(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = item.get_closest_marker("browser") and os.environ.get("KVQ_REQUIRE_BROWSER")
    if required and find_chromium() is None:
        pytest.fail("KVQ_REQUIRE_BROWSER is set and no Chromium was found", pytrace=False)
    if item.get_closest_marker("browser"):
        item.session.stash[_PAGES] = True
    elif not _may_load(item) and _PAGES not in item.session.stash:
        item.stash[HELD] = {}
        if loader := sys.modules.get("kvq_core.models.loader"):
            item.stash[HELD], loader._held = loader._held, {}  # which a test before this one may have loaded


def _may_load(item: pytest.Item) -> bool:
    """Whether a test may load the bundled model."""
    return any(item.get_closest_marker(name) for name in ("real_model", "second_model"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fails a test that loaded the bundled model and is not marked: make test-fast would load it."""
    yield
    loader = sys.modules.get("kvq_core.models.loader")
    if loader is None or HELD not in item.stash:  # a test that was skipped had no setup
        return
    leaked = loader.in_memory(sys.modules["kvq_core.spec"].DEFAULT_MODEL) is not None
    loader._held = item.stash[HELD]
    if leaked:
        pytest.fail("This test loads the bundled model: mark it real_model, or ask for that fixture.", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _tell_of_the_second_model(terminalreporter)
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_line(f"{report.nodeid} was tried twice:\n{report.longreprtext}", yellow=True)
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "no Chromium found" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} browser tests were skipped: no Chromium found (Debian: apt-get install {_BROWSERS[0]}).",
            yellow=True,
        )


def _tell_of_the_second_model(terminalreporter: pytest.TerminalReporter) -> None:
    """Whether its tests ran: where it cannot be had, nothing fails."""
    told = {
        outcome: [r for r in terminalreporter.stats.get(outcome, []) if "second_model" in getattr(r, "keywords", ())]
        for outcome in ("passed", "failed", "error", "skipped")
    }
    if ran := sum(len(reports) for outcome, reports in told.items() if outcome != "skipped"):
        terminalreporter.write_line(f"{ran} tests of the second model ran.")
    if told["skipped"]:
        terminalreporter.write_line(f"{len(told['skipped'])} tests of the second model were skipped.", yellow=True)


@pytest.fixture(autouse=True)
def _own_store(request, monkeypatch, tmp_path_factory):
    """In the test's folder where it has one: most have none, and making one for each took seconds."""
    if "tmp_path" in request.fixturenames:
        place = request.getfixturevalue("tmp_path")
    else:
        place = tmp_path_factory.getbasetemp() / f"of-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]}"
    monkeypatch.setenv("KVQ_STORE", str(place / "store"))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged, as name and message. Pytest's own capture is off (pyproject.toml)."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.name}: {record.getMessage()}")
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def real_model() -> None:
    """Asked for by fixtures that load the bundled model, in other processes too: their tests get the marker."""


@pytest.fixture(scope="session")
def smollm(real_model):
    """The bundled model, really loaded."""
    from kvq_core.models import load
    from kvq_core.spec import DEFAULT_MODEL

    return load(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def second_model() -> str:
    """Id of the second model, converted here where only its file is there."""
    from kvq_core.errors import ModelError
    from kvq_core.models import second
    from kvq_core.models.source import resolve

    try:
        if not second.is_converted():
            file = second.local_file()
            if file is None:
                pytest.skip("the second model is not here: make second-model")
            resolve(str(file.resolve()), None)
    except ModelError as error:
        pytest.skip(f"the second model cannot be had: {error}")
    return second.SECOND_MODEL


@pytest.fixture
def sample_run() -> Callable[..., tuple[Record, dict[str, torch.Tensor]]]:
    """Makes a small but complete record with arrays; ``id``, ``created``, ``prompt`` and ``text`` as asked."""
    from tests.support.sample_record import make_sample

    return make_sample
