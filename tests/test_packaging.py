"""What a wheel contains, every source, preset, codebook, finished run, style and script; and that it runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kvq_core
from kvq_core import shipped
from kvq_core.pipeline.examples import example_ids
from kvq_core.settings import settings
from scripts.install import PIP
from tests.support.command_line import refused
from tests.test_dependencies import plain
from tests.test_imports import ROOT

INSIDE = {"kvq_core": "kvq_core", "kvq_explorer": "kvq_explorer", "kernels/kvq_kernels": "kvq_kernels"}
INSIDE |= {name: f"kvq_explorer/{name}" for name in ("ui", "presets", "app.py")}  # where a wheel has what
REST = ("pyproject.toml", "README.md", "LICENSE")
MOST = 45_000_000  # bytes of the wheel
BUSY_S = 400  # a process that imports everything takes seconds, and minutes on a machine that has much else to do
pytestmark = pytest.mark.timeout(3 * BUSY_S)
SPEC = {"prompt": "Say hi to the harbour.", "max_new_tokens": 2, "lanes": [{"method": "kivi"}]}


def test_presets_of_somebody_else_are_not_taken_for_ours(tmp_path, monkeypatch):
    assert shipped.root() == ROOT
    monkeypatch.setattr(shipped, "_BESIDE", tmp_path)
    (tmp_path / "presets").mkdir()
    (inside := tmp_path / "kvq_explorer" / "presets").mkdir(parents=True)
    assert shipped.shipped() == inside


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Made of a copy of the sources, in which nothing else is left behind; no index is asked."""
    sources, made = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for place in ("kvq_core", "kvq_explorer", "kernels", "ui", "presets"):
        shutil.copytree(ROOT / place, sources / place, ignore=shutil.ignore_patterns("__pycache__"))
    for file in [*ROOT.glob("*.txt"), *ROOT.glob("*.py"), *(ROOT / name for name in REST)]:
        shutil.copy(file, sources)
    (stale := sources / "build" / "lib" / "kvq_core" / "gone.py").parent.mkdir(parents=True)
    stale.touch()
    pip("wheel", "--no-build-isolation", "--wheel-dir", made, sources)
    (found,) = made.glob("kvq_explorer-*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory) -> Path:
    """``kvq-explorer`` of an environment with nothing but the wheel, and a path to what it depends on, which is this
    one's: that an index has all of that, tests/test_install.py asks."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip("--python", place / "bin" / "python", "install", "--no-index", wheel)
    return place / "bin" / "kvq-explorer"


def pip(*arguments: str | Path) -> None:
    given = [str(each) for each in arguments]
    at = next(n for n, each in enumerate(given) if each in ("wheel", "install")) + 1
    called = [*PIP, *given[:at], "--quiet", "--no-deps", *given[at:]]
    done = subprocess.run(called, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def environment(**changes: str | Path) -> dict[str, str]:
    """Without what leads to the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPACE_ID")}
    return {**kept, "HF_HUB_OFFLINE": "1", **{name: str(value) for name, value in changes.items()}}


def ask(*given: str | Path, folder: Path, **changes: str | Path) -> subprocess.CompletedProcess[str]:
    called = [str(each) for each in given]
    return subprocess.run(
        called, capture_output=True, text=True, cwd=folder, env=environment(**changes), timeout=BUSY_S
    )


@pytest.mark.slow
def test_the_wheel_has_all_that_ships_and_nothing_else(wheel):
    """Above all at its top no package that others have, as the one named kernels that transformers imports."""
    here = {
        str(inside / file.relative_to(ROOT / place))
        for place, inside in ((place, Path(name)) for place, name in INSIDE.items())
        for file in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".md"
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == here and {"kvq_core/py.typed", "kvq_explorer/app.py"} <= found
    assert {name.split("/")[0] for name in found} == {"kvq_core", "kvq_explorer", "kvq_kernels"}
    assert wheel.stat().st_size <= MOST


@pytest.mark.slow
def test_the_wheel_asks_for_what_the_checkout_does(wheel):
    told = zipfile.ZipFile(wheel)
    (name,) = (name for name in told.namelist() if name.endswith(".dist-info/METADATA"))
    lines = told.read(name).decode().splitlines()
    wanted = [Requirement(line[15:]) for line in lines if line.startswith("Requires-Dist: ")]
    always = {str(each) for each in wanted if not each.marker}
    assert always == {str(Requirement(line)) for line in plain("requirements.txt")}
    extras: dict[str, set[str]] = {}
    for each in wanted:
        if each.marker:
            extras.setdefault(str(each.marker).split('"')[1], set()).add(each.name)
    assert extras.keys() == {"studies", "formats", "mcp", "llama-cpp"}
    assert extras["mcp"] == {"gradio"} and extras["llama-cpp"] == {"xllamacpp"} and "ray" in extras["studies"]


@pytest.mark.slow
def test_only_the_command_finds_the_page(command, tmp_path):
    where = "import importlib.util as i, kvq_core; print(kvq_core.__file__, *map(i.find_spec, ('ui', 'app')))"
    asked = ask(command.with_name("python"), "-c", where, folder=tmp_path)
    own, *page = asked.stdout.split()
    assert page == ["None", "None"] and command.parents[1] in Path(own).parents
    told = ask(command, "--help", folder=tmp_path).stdout
    assert "usage: kvq-explorer" in told and "python -m" not in told
    assert json.loads(ask(command, "presets", "--json", folder=tmp_path).stdout)
    drawn = ask(command, "embed", example_ids()["first-sight"], folder=tmp_path)
    assert drawn.stdout.lstrip().startswith("<"), drawn.stderr
    refused(ask(command, "nonsense", folder=tmp_path), "nonsense", "kvq-explorer --help")


@pytest.mark.slow
def test_a_comparison_is_the_checkouts(smollm, command, tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    done = ask(command, "compare", "--spec", "spec.json", "--json", folder=tmp_path, KVQ_STORE=tmp_path / "store")
    assert done.returncode == 0, done.stderr
    found, here = json.loads(done.stdout), kvq_core.run(kvq_core.parse_spec(SPEC))
    assert found["id"] == here.id and found["reference"]["token_ids"] == list(here.reference.token_ids)
    assert found["lanes"][0]["metrics"] == json.loads(here.lanes[0].model_dump_json())["metrics"]


@pytest.fixture
def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.slow
def test_without_arguments_it_serves_the_page_and_opens_it(real_model, command, tmp_path, port):
    """The browser is a script that notes what it is given. A second one on that port ends with a line."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(settings().home / "models")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened')
    browser.chmod(0o755)
    where = {"KVQ_HOME": tmp_path / "home", "KVQ_STORE": tmp_path / "store", "PORT": port, "BROWSER": f"{browser} %s"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([command], cwd=tmp_path, env=environment(**where), stdout=log, stderr=log)
    try:
        page = first_answer(f"http://127.0.0.1:{port}/", server, tmp_path / "log")
        assert example_ids()["first-sight"] in page
        taken = ask(command, folder=tmp_path, **where)
        assert taken.returncode == 2 and taken.stderr.strip().splitlines()[-1].startswith("Nothing can be served on")
        assert "Traceback" not in taken.stderr
    finally:
        server.terminate()
        assert server.wait(BUSY_S) == 143
    assert (tmp_path / "opened").read_text().strip() == f"http://127.0.0.1:{port}/"


def first_answer(address: str, server: subprocess.Popen, log: Path) -> str:
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return answer.read().decode()
        except OSError:
            assert server.poll() is None, log.read_text()
            time.sleep(0.3)
    raise AssertionError(log.read_text())
