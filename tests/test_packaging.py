"""What an installed copy contains: every source, preset, codebook, finished run, style and script."""

import pytest
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration

from tests.test_imports import ROOT

PLACES = {"kvq_core": "kvq_core", "ui": "ui", "kvq_kernels": "kernels/kvq_kernels", "presets": "presets"}


@pytest.fixture
def installed(monkeypatch):
    """Files of the checkout that setuptools would install."""
    monkeypatch.chdir(ROOT)
    found = apply_configuration(Distribution({"script_name": "setup.py"}), "pyproject.toml")
    command = found.get_command_obj("build_py")
    command.ensure_finalized()
    modules = {ROOT / file for _, _, file in command.find_all_modules()}
    return modules | {ROOT / folder / name for _, folder, _, names in command.data_files for name in names}


def test_nothing_is_left_out_of_an_installed_copy(installed):
    here = {
        file
        for place in PLACES.values()
        for file in (ROOT / place).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".md"
    }
    assert here and here - installed == set()


def test_nothing_else_is_installed(installed):
    """Above all no package named kernels, which would shadow the distribution that transformers imports."""
    places = [ROOT / place for place in PLACES.values()]
    assert [file for file in installed if not any(place in file.parents for place in places)] == []


def test_the_types_of_the_core_are_there_for_whoever_imports_it(installed):
    assert ROOT / "kvq_core" / "py.typed" in installed
