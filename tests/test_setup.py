"""Set-up: what a fresh clone and the Makefile rely on."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import LONGEST, find_chromium

ROOT = Path(__file__).parent.parent


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def test_the_fixed_top_level_is_there():
    for name in (
        "app.py",
        "kvq_core",
        "kvq_explorer",
        "kernels",
        "ui",
        "presets",
        "tests",
        "requirements.txt",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "CITATION.cff",
        "LICENSE",
        "Makefile",
    ):
        assert (ROOT / name).exists(), name
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_kernels_is_not_a_package():
    assert not (ROOT / "kernels" / "__init__.py").exists()


PROBE = """
import importlib.metadata
import transformers
import kvq_core, kvq_kernels
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from kvq_core.models import wrap
from kvq_core.pipeline.compare import compare_on
config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=64, max_position_embeddings=128)
model = LlamaForCausalLM(config).eval()
with torch.inference_mode():
    logits = model(torch.arange(8)[None]).logits
assert logits.shape == (1, 8, 64) and torch.isfinite(logits).all()
wrap(model, None, id="tiny")
try:
    import kernels
    print("kernels", getattr(kernels, "MARK", "none"), getattr(kernels, "__file__", None))
except ImportError:
    print("kernels absent")
print("ours", kvq_kernels.__file__)
"""


@pytest.mark.slow
def test_models_load_beside_a_distribution_named_kernels(tmp_path):
    """Hugging Face ships a distribution `kernels` that transformers imports; ours must not take its place. Without it
    models load in all other tests."""
    site = tmp_path / "site"
    package, info = site / "kernels", site / "kernels-0.18.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(FAKE_KERNELS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.0\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")
    (info / "top_level.txt").write_text("kernels\n")
    # the checkout first, as `python app.py` and `python -m kvq_core` have it: the worst case for shadowing
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, site]))}
    result = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, env=env, cwd=ROOT, timeout=200
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert f"ours {ROOT}/kernels/kvq_kernels/__init__.py" in result.stdout
    assert f"kernels theirs {package}/__init__.py" in result.stdout


# What transformers imports from it; every name resolves, so that only the place of the package is under test.
FAKE_KERNELS = textwrap.dedent(
    """
    MARK = "theirs"
    __version__ = "0.18.0"

    class _Any:
        def __init__(self, *args, **kwargs): pass
        def __call__(self, *args, **kwargs): return args[0] if args and callable(args[0]) else self
        def __getattr__(self, name):
            if name.startswith("__"): raise AttributeError(name)
            return _Any()
        def __class_getitem__(cls, item): return cls

    def __getattr__(name):
        if name.startswith("__"): raise AttributeError(name)
        return type(name, (_Any,), {}) if name[0].isupper() else _Any()
    """
)


def test_make_parses_every_target():
    targets = ("setup", "run", "test", "test-fast", "test-long", "check", "bench", "readme", "fmt", "clean")
    result = subprocess.run(["make", "-n", *targets], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_files_for_a_browser_or_a_compiler_are_not_imported_by_the_fast_tests():
    told = subprocess.run(["make", "-n", "test-fast"], capture_output=True, text=True, cwd=ROOT).stdout
    left = {ROOT / name for name in re.findall(r"--ignore=(\S+)", told)}
    browser = ROOT / "tests" / "browser"
    assert browser in left and all("pytest.mark.browser" in file.read_text() for file in browser.glob("test_*.py"))
    assert len(left) > 1 and all("mark.compiler" in file.read_text() for file in left - {browser})


@pytest.mark.parametrize(("given", "told"), [((), "fetch"), (("UV=",), ""), (("UV=/some/uv",), "/some/uv")])
def test_set_up_takes_uv_where_it_is_and_is_told_what_torch_takes(tmp_path, given, told):
    """What make would run, of which nothing is run; no uv is on the PATH. tests/test_install.py has the rest."""
    command = ["make", "-n", "setup-dev", f"VENV={tmp_path}/new", f"PYTHON={sys.executable}", "TORCH_ARGS=--some x"]
    path = os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if not (Path(place) / "uv").exists())
    env = {**os.environ, "PATH": path}
    done = subprocess.run([*command, *given], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "scripts/install.py" in line]
    assert [line.partition("install.py ")[2] for line in lines] == [
        f'--uv "{told}" -- --some x',
        f'--uv "{told}" --dev',
    ]
    venv = f"{told} venv --quiet --seed --python" if told not in ("", "fetch") else f"{sys.executable} -m venv"
    assert any(line.startswith(venv) for line in done.stdout.splitlines())


def test_the_page_is_served_before_the_model_is_converted(tmp_path):
    done = subprocess.run(["make", "-n", "run", f"VENV={tmp_path}/new"], capture_output=True, text=True, cwd=ROOT)
    assert "install.py" in done.stdout and "app.py" in done.stdout and "kvq_core.models" not in done.stdout


def test_one_room_is_tested_alone_and_an_unknown_one_is_told_what_there_is():
    def make(room: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["make", "-n", "test", f"ROOM={room}"], capture_output=True, text=True, cwd=ROOT)

    assert "pytest tests/core/methods --durations" in make("methods").stdout
    refused = make("nonsense")
    assert refused.returncode != 0 and len(refused.stderr.splitlines()) == 1
    assert "ROOM=nonsense has no tests" in refused.stderr and " methods " in refused.stderr


def test_every_room_has_tests_of_its_own():
    """Where ``make test ROOM=`` looks for them."""
    for top, place in (("kvq_core", "core"), ("ui", "ui")):
        for room in sorted(file.parent.name for file in (ROOT / top).glob("*/__init__.py")):
            folder = ROOT / "tests" / place / room
            assert (folder / "__init__.py").is_file() and list(folder.glob("test_*.py")), folder


def test_a_machine_without_a_fitting_python_is_told_so(tmp_path):
    """In a copy of the Makefile alone, with a PATH that holds no Python; uv fetches one where it is."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "make", "grep", "test", "touch", "rm"):
        found = next((Path(p) / tool for p in os.environ["PATH"].split(os.pathsep) if (Path(p) / tool).is_file()), None)
        if found:
            (tools / tool).symlink_to(found)
    old = tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # a Python of another version fails the question for its own
    old.chmod(0o755)
    env = {"PATH": str(tools), "HOME": str(tmp_path)}
    by_uv = subprocess.run(["make", "-n", "setup", "UV=uv"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert "uv venv --quiet --seed --python 3.12 .venv" in by_uv.stdout
    result = subprocess.run(["make", "setup"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert result.returncode != 0
    assert "No Python 3.11 to 3.14 was found" in result.stdout + result.stderr
    assert not (tmp_path / ".venv").exists()


def test_chromium_without_windows_is_taken_where_both_are_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert find_chromium() is None
    for name in ("chromium", "chromium-headless-shell"):
        (tmp_path / name).touch(0o755)
        assert find_chromium() == str(tmp_path / name)
    monkeypatch.setenv("CHROMIUM", "/one/of/my/own")
    assert find_chromium() == "/one/of/my/own"


BROWSER_TEST = """
import pytest
@pytest.mark.browser
def test_page():
    pass
def test_other():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("required", "passes"), [("", True), ("1", False)])
def test_browser_tests_are_skipped_or_missed_without_chromium(tmp_path, required, passes):
    """The real conftest in a process that has no Chromium."""
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "conftest.py").write_bytes((ROOT / "tests" / "conftest.py").read_bytes())
    (suite / "test_it.py").write_text(BROWSER_TEST)
    (suite / "pytest.ini").write_text("[pytest]\nmarkers = browser: x\n")
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "KVQ_REQUIRE_BROWSER": required}
    env.pop("CHROMIUM", None)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)],
        capture_output=True,
        text=True,
        env=env,
        cwd=suite,
    )
    assert (result.returncode == 0) == passes, result.stdout
    assert "No Chromium was found".lower() in result.stdout.lower() or "no Chromium found" in result.stdout
    assert ("1 passed, 1 skipped" if passes else "1 passed, 1 error") in result.stdout


def test_the_tests_that_start_first_are_there():
    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []


def test_no_absolute_paths_of_one_machine():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT).stdout.split()
    bad = re.compile(r"/(home|root|Users)/[a-z]")
    for name in listed:
        file = ROOT / name
        if file.suffix in (".py", ".md", ".toml", ".txt", ".css") and name != "tests/test_setup.py" and file.is_file():
            assert not bad.search(file.read_text(encoding="utf-8")), name
