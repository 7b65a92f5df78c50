"""What modules import, read from their sources, each of which is parsed once."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def room(file: Path) -> str:
    """The room a file lies in, as ``ROOMS`` names it."""
    top, *rest = file.relative_to(ROOT).with_suffix("").parts
    return rest[0] if top == "kvq_core" else f"{top}.{rest[0]}"


def places(own: str) -> Path:
    """Where a room lies, if it is a folder."""
    return Path(own.replace(".", "/") if own.startswith("ui.") else f"kvq_core/{own}")


def imported(tree: ast.Module) -> set[str]:
    """Dotted names a file imports, in functions, too."""
    names: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements, without what stands in them: an import is one."""
    pending: list[Any] = list(tree.body)
    while pending:
        yield (node := pending.pop())
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, name, [])


def rooms(names: set[str] | frozenset[str]) -> dict[str, set[str]]:
    """The rooms of this project among imported names, each with the modules meant there."""
    found: dict[str, set[str]] = {}
    for name in names:
        top, *rest = name.split(".")
        if top == "kvq_kernels":
            found.setdefault("kernels", set())
        elif top in ("app", "tests", "benchmarks", "scripts"):
            found.setdefault(top, set())
        elif top in ("kvq_core", "ui") and rest:
            here = rest[0] if is_room(top, rest[0]) else "__init__"
            found.setdefault(here if top == "kvq_core" else f"ui.{here}", set()).update(rest[1:2])
    return found


@cache
def is_room(top: str, name: str) -> bool:
    return (ROOT / top / name).is_dir() or (ROOT / top / f"{name}.py").is_file()


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path) -> frozenset[str]:
    return frozenset(imported(parse(file)))
