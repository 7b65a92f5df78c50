"""How long files may be; what a function may hold, ruff counts (pyproject.toml)."""

from kvq_core.methods import methods
from tests.test_imports import CORE, ROOT, SOURCES

TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_sizes():
    """Of a method that is one file, named after it, fewer lines."""
    for file in SOURCES:
        text = file.read_text(encoding="utf-8")
        limit = 200 if file.is_relative_to(CORE / "methods") and file.stem in methods() else 300
        assert len(text.splitlines()) <= limit, file
        assert file.stem not in ("utils", "helpers", "misc"), file


def test_files_of_tests_are_no_longer_than_those_they_test():
    assert not [file for file in TESTS if len(file.read_text(encoding="utf-8").splitlines()) > 300]
