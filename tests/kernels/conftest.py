"""Where the kernels run in these tests, and memory that shows what a kernel forgot to write."""

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from resume import Resume, fingerprint

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        config.option.markexpr = "not gpu"
        patch_once()
        round_fma_once()
        return
    if not torch.cuda.is_available():
        pytest.exit("No GPU was found; set TRITON_INTERPRET=1 to interpret the kernels on the CPU.", returncode=2)
    machine = f"{torch.cuda.get_device_name()} {torch.__version__}"  # a torch brings its triton
    mark = fingerprint(machine, (HERE, HERE.parents[1] / "kernels"))
    config.pluginmanager.register(Resume(HERE / ".passed", mark))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Interpreted, with EVERY=n in the environment: about one of n cases of every check, and the first always. Steps of
    n alone would meet the same value of a parameter again and again."""
    n = int(os.environ.get("EVERY", 1)) if os.environ.get("TRITON_INTERPRET") == "1" else 1
    seen: Counter[str] = Counter()
    chosen = []
    for item in items:
        at = seen[item.nodeid.split("[")[0]]
        seen[item.nodeid.split("[")[0]] += 1
        if at % n == at // n % n:
            chosen.append(item)
    items[:] = chosen


def patch_once() -> None:
    """Triton's interpreter patches its language at every launch and at every call between compiled functions, which
    took half the time of these tests. Nothing here needs the language unpatched."""
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: SimpleNamespace(restore=lambda: None)


def round_fma_once() -> None:
    """As GPUs do; older interpreters round the product too. A float64 holds the product of two float32."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def fma(self: object, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        exact = x.data.astype("float64") * y.data.astype("float64") + z.data.astype("float64")
        return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    InterpreterBuilder.create_fma = fma


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@pytest.fixture
def fewer_programs(device, monkeypatch):
    """Half as many, where they are interpreted: two splits of a head's packed tokens or more."""
    if device == "cpu":
        monkeypatch.setattr("kvq_kernels.launch.REGISTERS", 65536 // 2)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Uninitialised memory is NaN, or bytes that no code is made of, so that an output nobody wrote cannot pass."""

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 0x5A)

    for name in ("empty", "empty_like"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, real=real, **k: poison(real(*a, **k)))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
