"""What is installed, what is imported, and what a start loads."""

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_imports import ROOT

# What comes with gradio, transformers, plotly and pandas is heavy enough: what joins it costs every start and every
# visitor of a Space. The core's names are imported when they are asked for, so that `--help` answers at once.
LOADED = {
    "kvq_core": set(),
    "app": set(
        """
        PIL annotated_doc annotated_types anyio attr attrs brotli certifi click dateutil dotenv fastapi filelock
        fsspec gradio gradio_client groovy h11 hf_gradio httpcore httpcore2 httpx httpx2 httpx_sse huggingface_hub
        idna jinja2 jsonschema jsonschema_specifications markupsafe mcp narwhals numpy opentelemetry orjson
        packaging pandas plotly psutil pyarrow pydantic pydantic_core pydantic_settings pydub pygments python_multipart
        pytz rapidfuzz referencing regex rich rpds safehttpx safetensors semantic_version shellingham six sse_starlette
        starlette tokenizers tomlkit torch torchgen tqdm transformers truststore typer typing_extensions
        typing_inspection uvicorn yaml
        """.split()
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("module", LOADED)
def test_nothing_heavier_is_loaded(module):
    """Whatever begins with an underscore is part of a package that is named, or of how Python starts."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    named = {name for name in done.stdout.split() if not name.startswith("_")}
    # optional to what is listed: the packages of studies bring them, and hf-mem the last three
    named -= {"cloudpickle", "defusedxml", "dill", "h2", "hpack", "hyperframe"}
    ours = {"kvq_core", "kvq_kernels", "ui", "app", "cython_runtime"}
    assert named - ours - sys.stdlib_module_names <= LOADED[module]


@pytest.mark.slow
def test_every_import_is_a_declared_dependency():
    declared = {
        re.split(r"[<>=\[ ]", line)[0].lower().replace("-", "_")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    # what a declared library brings by its own promise, and what is imported only where it is present
    brought = {"triton", "spaces", "optimum", "hqq", "httpx", "xllamacpp", "ray", "lm_eval"}
    ours = {"kvq_core", "kvq_kernels", "ui", "app"}
    for file in [
        ROOT / "app.py",
        *(f for d in ("kvq_core", "kvq_explorer", "kernels", "ui") for f in (ROOT / d).rglob("*.py")),
    ]:
        tops = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                tops |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                tops.add(node.module.split(".")[0])
        names = {"pillow" if top == "PIL" else top.lower() for top in tops}
        extra = names - declared - brought - ours - set(sys.stdlib_module_names)
        assert not extra, f"{file}: {sorted(extra)} not in requirements.txt"


def test_the_lock_names_a_version_of_everything_and_each_is_in_its_range():
    lines = [line for line in (ROOT / "requirements-lock.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "a build, a path or an address of one machine"
    locked = {canonicalize_name(name): held for name, _, held in (line.partition("==") for line in lines)}
    wanted = [Requirement(line) for name in ("", "-dev", "-studies") for line in plain(f"requirements{name}.txt")]
    seen = set()
    while wanted:
        asked = wanted.pop()
        name, extras = canonicalize_name(asked.name), sorted(asked.extras) or [""]
        if name in ("triton", "setuptools"):  # torch's choice; part of the environment
            continue
        held = locked.get(name)
        assert held and asked.specifier.contains(held), f"{asked}, but {held} is locked; try make lock"
        if (name, *extras) not in seen and name != "torch":  # which brings what its build needs
            seen.add((name, *extras))
            found = map(Requirement, requires(name) or [])
            wanted += [r for r in found if not r.marker or any(r.marker.evaluate({"extra": extra}) for extra in extras)]


def plain(file: str) -> list[str]:
    """A requirements file without its comments."""
    found = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    return [line for line in found if line]


def test_front_matter_names_the_versions_that_are_installed():
    matter = (ROOT / "README.md").read_text(encoding="utf-8").split("---")[1]
    for line in ("sdk: gradio", "app_file: app.py", "license: apache-2.0", "title:", "short_description:", "tags:"):
        assert line in matter
    version = re.search(r"sdk_version: (\S+)", matter)[1]
    assert f"gradio=={version.rsplit('.', 1)[0]}.*" in (ROOT / "requirements.txt").read_text()
    assert re.search(r'python_version: "3\.1[12]"', matter)
    assert len(re.search(r"short_description: (.*)", matter)[1]) <= 60
