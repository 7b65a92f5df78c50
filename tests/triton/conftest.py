"""What was compiled or interpreted once is not again until kernels, their tests or the versions change."""

import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.kernels.resume import fingerprint
from tests.support.campaigns import whole

ROOT = Path(__file__).parents[2]


@pytest.fixture
def passed_before(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """To be called as a test's last line. ``--cache-clear`` runs all again, as make test-long does by itself."""
    versions = [f"{name} {version(name)}" for name in ("torch", "triton", "numpy", "pytest")]
    machine = f"{platform.machine()}, Python {sys.version}, {', '.join(versions)}"
    read = (ROOT / "tests" / name for name in ("kernels", "triton", "support"))
    mark = fingerprint(machine, [ROOT / "kernels", ROOT / "benchmarks" / "aot", *read])
    cache, key = getattr(request.config, "cache", None), f"kvq/{request.node.nodeid.replace('/', '.')}"
    if cache is None:  # pytest without its cache
        yield lambda: None
        return
    if not whole() and cache.get(key, None) == mark:
        pytest.skip("passed before with the same kernels, tests and versions")
    yield lambda: cache.set(key, mark)
