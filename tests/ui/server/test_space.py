"""The Space's front matter against what is pinned and what app.py needs; what a fresh Space opens; its stores."""

import ast
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from kvq_core.models import available_models, bundled
from kvq_core.pipeline.examples import example_ids, examples
from kvq_core.presets import presets
from kvq_core.record.store import open_store
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.training.offer import possible_here
from ui.layout import build_ui
from ui.service.services import Services

ROOT = Path(__file__).parents[3]
FRONT = yaml.safe_load((ROOT / "README.md").read_text(encoding="utf-8").split("---\n")[1])
ZERO_GPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")
COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
# of packages that bring others, and what is only there where it is used
ALSO = {"PIL": "pillow", "fastapi": "gradio", "httpx": "gradio", "triton": "torch", "spaces": "a Space on ZeroGPU"}
OPTIONAL = {"optimum", "hqq", "xllamacpp", "ray", "lm_eval"}  # what needs one of them says what to install


def pins(file: str) -> dict[str, Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    found = [Requirement(line) for line in lines if line]
    return {requirement.name: requirement for requirement in found}


PINS = pins("requirements.txt")


def test_the_front_matter_is_complete():
    assert (ROOT / "README.md").read_text(encoding="utf-8").startswith("---\n")
    assert FRONT["sdk"] == "gradio" and FRONT["title"] and len(FRONT["emoji"]) == 1 and FRONT["tags"]
    assert {FRONT["colorFrom"], FRONT["colorTo"]} <= set(COLORS) and FRONT["pinned"] is False
    assert 0 < len(FRONT["short_description"]) <= 60
    assert FRONT["suggested_hardware"] == "cpu-basic" and (ROOT / FRONT["app_file"]).is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert FRONT["license"] == project["license"].lower()


def test_its_versions_are_those_that_are_pinned_and_tested():
    assert FRONT["sdk_version"] in PINS["gradio"].specifier and FRONT["sdk_version"] == version("gradio")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(FRONT["python_version"], str), "an unquoted 3.10 would be 3.1"
    assert Requirement(f"python{project['requires-python']}").specifier.contains(FRONT["python_version"])


def test_every_torch_of_zero_gpu_is_allowed():
    assert all(each in PINS["torch"].specifier for each in ZERO_GPU_TORCH)


def test_mcp_is_pinned_with_gradio():
    dev = pins("requirements-dev.txt")["gradio"]
    assert dev.extras == {"mcp"} and dev.specifier == PINS["gradio"].specifier
    assert f"pip install '{dev}'" in (ROOT / "docs/api.md").read_text(encoding="utf-8")


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.slow
def test_requirements_name_all_that_the_app_imports():
    files = [
        ROOT / FRONT["app_file"],
        *(f for part in ("kvq_core", "ui", "kernels") for f in (ROOT / part).rglob("*.py")),
    ]
    ours = {"kvq_core", "kvq_kernels", "ui", "app"}
    needed = set().union(*map(imported, files)) - ours - sys.stdlib_module_names
    missing = {
        name
        for name in needed
        if name not in {*PINS, *OPTIONAL} and ALSO.get(name) not in {*PINS, "a Space on ZeroGPU"}
    }
    assert not missing and {"gradio", "torch", "transformers"} <= needed


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A Space that has just been built."""
    monkeypatch.setattr(bundled, "PACKAGE", "a_package_nobody_has")
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPACE_ID", "somebody/kvq-explorer")
    monkeypatch.delenv("KVQ_MODELS", raising=False)


def test_it_offers_the_bundled_model_first_and_names_what_that_was_made_from(fresh):
    assert available_models()[0].id == DEFAULT_MODEL and FRONT["models"] == [bundled.MADE_FROM]


def test_a_fresh_space_opens_the_runs_that_ship(fresh):
    records = Services(open_store(), None, None).records
    found = example_ids()
    assert set(found) == set(examples())
    for run in found.values():
        record, arrays = records.get(run)
        assert record.id == run and arrays


@pytest.mark.slow
def test_all_presets_run_there_and_elsewhere_those_whose_lanes_can(fresh, monkeypatch):
    """The shipped codebooks are the bundled model's, which a Space takes, too; a Space trains none."""
    assert all(possible_here(preset.spec) for preset in presets().values())
    monkeypatch.setenv("KVQ_MODELS", bundled.MADE_FROM)
    needing = {name for name, preset in presets().items() if any(lane.method == "commvq" for lane in preset.spec.lanes)}
    assert needing and {name for name, preset in presets().items() if not possible_here(preset.spec)} == needing
    setup = build_ui(Services(open_store(), None, None)).config["components"]
    offered = {c["props"].get("elem_id") for c in setup} | {
        name for c in setup if c["props"].get("label") == "More presets" for _, name in c["props"]["choices"]
    }
    assert not needing & offered and "qaq-window" in offered and "preset-first-look" in offered


@pytest.mark.parametrize(
    ("url", "scheme", "root"),
    [
        ("hf://datasets/somebody/runs/store", "hf", "datasets/somebody/runs/store"),
        ("hf://buckets/somebody/runs", "hf", "buckets/somebody/runs"),
        ("/data/runs", "file", "/data/runs"),
    ],
)
def test_the_stores_of_its_page_can_be_opened(monkeypatch, url, scheme, root):
    monkeypatch.setenv("KVQ_STORE", url)
    store = open_store()
    assert (store.scheme, store.root) == (scheme, root)
    told = (ROOT / "docs/space.md").read_text(encoding="utf-8")
    assert re.search(rf"`{re.escape(url.replace('somebody', 'owner').split('/runs')[0])}", told)
