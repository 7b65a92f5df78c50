"""What tests share: no network, a store of their own, the real model, a sample run, and the browser."""

import os
import shutil
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling

from kvq_core.record import CaptureInfo, Environment, LaneRecord, Memory, Metrics, Record, Reference, RunTiming

# the same examples every time: a test that fails only on some days teaches people to run it again
hypothesis_settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis_settings.load_profile("repeatable")

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SAMPLE_ID = "0123456789abcdef"
# Workers take whole groups of tests in the order collected: a file each, and all that need the one server with its
# browser. Those that take longest come first.
_SERVED = "browser"
_LONGEST = (
    _SERVED, "test_kernels_triton.py", "test_run.py", "test_cli.py", "test_docs.py", "test_packed.py",
    "test_explain.py", "test_zero_gpu.py", "test_packed_methods.py", "test_setup.py", "test_engine.py", "test_share.py",
    "test_every_method.py", "test_gpu_benchmark.py",
)  # fmt: skip


def find_chromium() -> str | None:
    """Path of an installed Chromium; CHROMIUM overrides."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser; tests that use it are marked ``browser``."""
    path = find_chromium()
    assert path is not None
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(_group(item.nodeid), len(places)))
    if find_chromium() is None and not os.environ.get("KVQ_REQUIRE_BROWSER"):
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="no Chromium found"))


def _group(node: str) -> str:
    file = node.split("::")[0].removeprefix("tests/")
    return _SERVED if file.startswith(f"{_SERVED}/") else file


class _Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Groups(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and find_chromium() is None:
        pytest.fail("KVQ_REQUIRE_BROWSER is set and no Chromium was found", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "no Chromium found" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} browser tests were skipped: no Chromium found (Debian: apt-get install chromium).",
            yellow=True,
        )


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_STORE", str(tmp_path / "store"))


@pytest.fixture(scope="session")
def smollm():
    """The bundled model, really loaded."""
    from kvq_core.models import load
    from kvq_core.spec import DEFAULT_MODEL

    return load(DEFAULT_MODEL)


@pytest.fixture
def sample_run() -> Callable[..., tuple[Record, dict[str, torch.Tensor]]]:
    """Makes a small but complete record with arrays; ``id``, ``created``, ``prompt`` and ``text`` as asked."""
    return make_sample


def make_sample(
    id: str = _SAMPLE_ID, created: str = "2026-01-02T03:04:05+00:00", prompt: str = "Say hi.", text: str = "Hi."
) -> tuple[Record, dict[str, torch.Tensor]]:
    metrics = Metrics(n_scored=63, kld_mean=0.125, kld_p99=0.5, flip_rate=0.25, ppl_ratio=1.5, first_divergence=7)
    lanes = [_lane("KIVI 2-bit", "kivi", metrics, text), _lane("SQuat", "squat", metrics, text)]
    record = Record(
        id=id, results_version=1, created=created, spec={"prompt": prompt, "model": "m"},
        environment=Environment(
            versions={"torch": "2"}, device="cpu", dtype="float32", model="m", model_title="A model",
            weights_hash="0" * 16, revision=None, seed=0, layers=2, query_heads=4, kv_heads=2, head_dim=8,
        ),
        reference=Reference(
            text=text, token_ids=[1, 2], tokens=["H", "i"], prompt_token_ids=[3], prompt_tokens=["x"],
            finish="eos", ppl=2.0,
        ),
        noise_floor=_lane("Noise floor", "fp16", metrics, text), lanes=lanes,
        capture=CaptureInfo(detail="off", layers=[], heads=[], step_edges=[], position_edges=[], topk=5),
        timing=RunTiming(
            prefill_s=1, encode_s=1, decode_s=1, steps=63, ms_per_step=1.0, rows_mean=3.0, total_s=3.0
        ),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(int(id, 16) % 2**31)
    arrays = {
        "lane/0/kld": torch.rand(63, generator=generator),
        "lane/0/delta_map": torch.randint(-127, 128, (2, 4, 8, 8), generator=generator, dtype=torch.int8),
        "reference/topk_ids": torch.arange(10, dtype=torch.int32).view(2, 5),
        "subspace/deviation_all": torch.ones(1, 3).expand(2, 3),  # not contiguous on purpose
    }
    return record, arrays


def _lane(label: str, method: str, metrics: Metrics, text: str) -> LaneRecord:
    memory = Memory(
        key_bits=3.0, value_bits=3.5, key_bits_quantized=3.0, value_bits_quantized=3.0, bytes_by_part={},
        shared_bytes=0, encoder_bytes=0, kv_ratio=0.2, tokens=64,
    )  # fmt: skip
    return LaneRecord(
        label=label, method=method, title=method, summary="", knobs={}, tensors="both", layers="all", sink_tokens=None,
        recent_tokens=None, status="done", text=text, metrics=metrics, memory=memory,
    )  # fmt: skip
