"""How long files and functions may be."""

import ast
from collections.abc import Iterator

from kvq_core.methods import methods
from tests.test_imports import CORE, ROOT, SOURCES, parse

# Functions over 40 lines, by file: those that wire one panel from top to bottom, lists of commands and of colours, and
# loops that share their state. This list only gets shorter.
LONG = """
    kvq_core/cli/main.py: _parser
    kvq_core/engine/rows.py: Rows.__call__
    ui/decide/place.py: _wire_result
    ui/html/escape.py: lane_tokens
    ui/html/theme.py: theme
    ui/layout.py: _wire_shown _wire_visit
    ui/panels/launch.py: wire_run
"""
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """Functions by their qualified names, each with its lines. None is defined within an expression."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        name = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                yield name, node.end_lineno - node.lineno + 1
        yield from functions(node, name)


def test_a_function_is_counted_beside_others_of_its_name():
    code = "class A:\n  def f(self):\n    x = 1\n    return x\nclass B:\n  def f(self): pass"
    assert dict(functions(ast.parse(code))) == {"A.f": 3, "B.f": 1}


def test_sizes():
    """Of a method that is one file, named after it, fewer lines."""
    for file in SOURCES:
        text = file.read_text(encoding="utf-8")
        limit = 200 if file.is_relative_to(CORE / "methods") and file.stem in methods() else 300
        assert len(text.splitlines()) <= limit, file
        assert file.stem not in ("utils", "helpers", "misc"), file


def test_functions_have_40_lines_but_for_those_that_are_named():
    """Kernels may have 80: Triton compiles each as a whole, and its loops keep their values in registers."""
    allowed = {
        (file, name) for file, names in (row.split(": ") for row in LONG.split("\n") if row) for name in names.split()
    }
    found = set()
    for file in SOURCES:
        place = str(file.relative_to(ROOT))
        lengths = dict(functions(parse(file)))
        assert max(lengths.values(), default=0) <= 80, file
        if not file.is_relative_to(ROOT / "kernels"):
            found |= {(place, name) for name, lines in lengths.items() if lines > 40}
    assert found == {(file.strip(), name) for file, name in allowed}


def test_files_of_tests_are_no_longer_than_those_they_test():
    assert not [file for file in TESTS if len(file.read_text(encoding="utf-8").splitlines()) > 300]
