"""The shape of the project, read from the sources: which way imports point, and what may not be spelled out twice."""

import ast
from functools import cache
from pathlib import Path

import pytest

from kvq_core.methods import methods

ROOT = Path(__file__).parent.parent
CORE = ROOT / "kvq_core"

# What each part of kvq_core may import; a part may always import itself. `kvq_kernels` is kernels/, `ui` the page.
ALLOWED = {
    "errors": set(),
    "settings": {"errors"},
    "limits": {"errors", "settings"},
    "machine": {"errors"},
    "memory": {"errors"},
    "logs": {"errors", "settings"},
    "rope": set(),
    "learned": {"errors", "settings"},
    "methods": {"errors", "kvq_kernels", "learned"},
    "record": set(),
    "events": {"record"},
    "verdict": {"record"},
    "versus": {"record"},
    "explain": {"errors", "methods", "record", "spec", "verdict"},
    "growth": {"methods", "record", "spec"},
    "complaints": {"methods"},
    "spec": {"complaints", "errors", "methods"},
    "models": {"errors", "memory", "methods", "rope", "settings", "spec"},
    "packed": {"errors", "kvq_kernels", "learned", "methods", "models", "rope", "spec"},
    "measuring": {"errors", "events", "memory", "models", "packed", "render", "spec"},
    "measure_cli": {"errors", "measuring", "packed", "presets", "spec"},
    "codebooks": {"errors", "kvq_kernels", "learned", "models"},
    "engine": {"errors", "kvq_kernels", "memory", "methods", "models", "rope", "spec"},
    "capture": {"engine", "errors", "methods", "models", "rope", "settings", "spec"},
    "metrics": {"capture", "engine", "errors", "methods", "record"},
    "roundtrip": {"engine", "errors", "methods", "rope"},
    "migrate": {"errors", "record"},
    "runfiles": {"errors", "migrate", "record"},
    "retention": set(),
    "folders": {"errors", "record", "runfiles"},
    "layouts": {"errors", "folders", "runfiles"},
    "store": {"errors", "folders", "layouts", "record", "retention", "runfiles", "settings"},
    "store_cli": {"store"},
    "presets": {"errors", "spec"},
    "links": {"errors", "spec"},
    "sharing": {"errors", "folders", "settings", "store"},
    "examples": {"errors", "presets", "run", "spec", "store"},
    "render": {"errors", "models", "spec"},
    "estimate": {"capture", "engine", "memory", "methods", "models", "record", "render", "settings", "spec"},
    "assemble": {"capture", "codebooks", "engine", "methods", "metrics", "models", "record", "spec"},
    "run": {
        "assemble", "capture", "codebooks", "engine", "errors", "estimate", "events", "memory", "methods", "metrics",
        "models", "record", "render", "settings", "spec", "store", "logs",
    },
    "board": {"errors", "settings"},
    "claims": {
        "assemble", "board", "capture", "codebooks", "engine", "errors", "learned", "methods", "models", "presets",
        "record", "rope", "run", "spec",
    },
    "claims_cli": {"board", "claims", "errors", "models", "spec"},
    "training": {"codebooks", "errors", "learned", "methods", "models", "settings", "spec"},
    "report": {"methods", "metrics", "presets", "record"},
    "codebooks_cli": {"codebooks", "errors", "learned", "models", "spec"},
    "cli": {
        "claims_cli", "codebooks_cli", "errors", "estimate", "events", "measure_cli", "presets", "record", "report",
        "run", "runfiles", "settings", "spec", "store", "store_cli",
    },
    "__main__": {"cli"},
    "__init__": {"errors", "methods", "packed", "record", "roundtrip", "run", "spec"},
}  # fmt: skip
# Types alone: `if TYPE_CHECKING:` may look upwards where a part works on what a higher one hands it.
TYPES_ONLY = {"assemble": {"run"}}
# Of kvq_core, the page sees the surface only: nothing that computes.
UI_ALLOWED = {
    "logs",
    "board", "errors", "estimate", "events", "examples", "explain", "growth", "limits", "links", "measuring", "memory",
    "methods", "models", "presets", "record", "report", "run", "runfiles", "settings", "sharing", "spec", "store",
    "training", "verdict", "versus",
}  # fmt: skip
SOURCES = sorted(
    [*CORE.rglob("*.py"), *(ROOT / "ui").rglob("*.py"), *(ROOT / "kernels").rglob("*.py"), ROOT / "app.py"]
)


def part(file: Path) -> str:
    return file.relative_to(CORE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Dotted names a tree imports, wherever in the file."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def without_types(tree: ast.Module) -> ast.Module:
    """The tree without its `if TYPE_CHECKING:` blocks."""

    class Drop(ast.NodeTransformer):
        def visit_If(self, node):  # noqa: N802
            self.generic_visit(node)
            guarded = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return (node.orelse or None) if guarded else node

    return Drop().visit(tree)


def parts(names: set[str] | frozenset[str], own: str = "") -> set[str]:
    """The parts of this project among imported names; of kvq_core its parts, else the top-level name."""
    found = set()
    for name in names:
        top, *rest = name.split(".")
        if top in ("kvq_kernels", "ui", "app", "tests", "benchmarks"):
            found.add(top)
        elif top == "kvq_core" and rest:
            known = (CORE / rest[0]).is_dir() or (CORE / f"{rest[0]}.py").is_file()
            found.add(rest[0] if known else "__init__")
    return found - {own}


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path) -> frozenset[str]:
    return frozenset(imported(parse(file)))


@pytest.mark.parametrize("file", sorted(CORE.rglob("*.py")), ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_point_one_way(file):
    own = part(file)
    upwards = TYPES_ONLY.get(own, set())
    assert own in ALLOWED, f"{own} is new: say in this test what it may import"
    extra = parts(imported(without_types(parse(file))), own) - ALLOWED[own]
    assert not extra, f"{own} may not import {sorted(extra)}"
    extra = parts(imports(file), own) - ALLOWED[own] - upwards
    assert not extra, f"{own} may not import {sorted(extra)}, not even for types"


def test_the_table_has_no_cycle():
    left = dict(ALLOWED)
    while left:
        free = [name for name, needs in left.items() if not needs & set(left)]
        assert free, f"a cycle among {sorted(left)}"
        for name in free:
            del left[name]


def test_kernels_import_nothing_of_ours():
    for file in (ROOT / "kernels").rglob("*.py"):
        assert parts(imports(file)) <= {"kvq_kernels"}, file


def test_the_page_sees_only_the_surface():
    for file in (ROOT / "ui").rglob("*.py"):
        extra = parts(imports(file)) - UI_ALLOWED - {"ui", "__init__"}
        assert not extra, f"{file.name} may not import {sorted(extra)}"


def test_nothing_imports_the_page_but_the_app():
    for file in SOURCES:
        if ROOT / "ui" not in file.parents and file.name != "app.py":
            assert not parts(imports(file)) & {"ui", "app"}, file


def test_only_models_import_transformers():
    for file in SOURCES:
        names = {name.split(".")[0] for name in imports(file)}
        if CORE / "models" not in file.parents:
            assert "transformers" not in names, file


def test_figures_are_pure():
    """ui/figures turns records into plotly figures: no widgets, no running."""
    for file in (ROOT / "ui" / "figures").rglob("*.py"):
        names = imports(file)
        assert not {n for n in names if n.split(".")[0] == "gradio"}, file
        assert not parts(names) & {"run", "store", "models"}, file


def test_no_pickle_and_no_eval():
    for file in SOURCES:
        assert not {n.split(".")[0] for n in imports(file)} & {"pickle", "shelve", "joblib", "dill"}, file
        calls = {n.func.id for n in ast.walk(parse(file)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not calls & {"eval", "exec"}, file


def method_names_compared(tree: ast.AST) -> list[str]:
    """Method names a comparison, a match case or a dict key spells out."""
    names, found = set(methods()), []

    def texts(node: ast.AST) -> set[str]:
        return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found += sorted(texts(node) & names)
        elif isinstance(node, ast.match_case):
            found += sorted(texts(node.pattern) & names)
        elif isinstance(node, ast.Dict):
            found += sorted({k.value for k in node.keys if isinstance(k, ast.Constant) and k.value in names})
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT)))
def test_no_branch_on_a_methods_name(file):
    if file.parent == CORE / "methods":
        return  # a method's own file may know its name
    assert not method_names_compared(parse(file))


def test_the_branch_test_would_notice():
    for code in (
        'if m == "kivi": pass',
        'x = {"squat": 1}',
        'match m:\n  case "per_token": pass',
        'm in ("kivi", "x")',
    ):
        assert method_names_compared(ast.parse(code))


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT)))
def test_sizes(file):
    text = file.read_text(encoding="utf-8")
    limit = 200 if file.parent == CORE / "methods" and file.stem in methods() else 300
    assert len(text.splitlines()) <= limit
    assert file.stem not in ("utils", "helpers", "misc")
    lengths = [
        node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert max(lengths, default=0) <= 80
