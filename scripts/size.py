"""How large the project is: files and lines of its code, packages, names defined twice, and kilobytes of its papers.
``python scripts/size.py [--json]``.

Counted are the files that git keeps, with blank lines and comments.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CODE = ("kvq_core", "ui", "kernels", "tests", "benchmarks", "scripts")
PAPERS = {"README": ("README.md",), "CHANGELOG": ("CHANGELOG.md",), "docs": ("docs/*.md",)}


def kept(*patterns: str) -> list[Path]:
    """Files of the work tree that git keeps and that match."""
    named = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True)
    found = (ROOT / name for name in named.stdout.decode().split("\0") if name)
    return [file for file in found if file.is_file()]


def code() -> dict[str, dict[str, int]]:
    """Files and lines of Python by folder, ``app.py`` with the page."""
    found = {}
    for folder in CODE:
        files = kept(f"{folder}/*.py", *(["app.py"] if folder == "ui" else []))
        found[folder] = {"files": len(files), "lines": sum(len(file.read_bytes().splitlines()) for file in files)}
    return found


def packages(folder: str) -> int:
    """Folders of modules right below one."""
    return len({file.relative_to(ROOT).parts[1] for file in kept(f"{folder}/*/*.py")})


def defined_twice(folder: str) -> dict[str, list[str]]:
    """Public functions and classes at the top of several modules, and of which."""
    found: dict[str, list[str]] = {}
    for file in kept(f"{folder}/*.py"):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                found.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    return {name: files for name, files in sorted(found.items()) if len(set(files)) > 1}


def papers() -> dict[str, float]:
    """Kilobytes by paper."""
    return {name: sum(file.stat().st_size for file in kept(*each)) / 1000 for name, each in PAPERS.items()}


def main() -> None:
    twice = {folder: defined_twice(folder) for folder in ("kvq_core", "ui")}
    if "--json" in sys.argv[1:]:
        told: dict[str, Any] = {"code": code(), "packages": {folder: packages(folder) for folder in twice}}
        print(json.dumps({**told, "defined_twice": twice, "papers_kb": papers()}, indent=1))
        return
    for folder, size in code().items():
        print(f"{folder:12}{size['files']:5} files {size['lines']:8,} lines")
    print(" / ".join(papers()), "".join((": ", " / ".join(f"{size:.0f}" for size in papers().values()), " KB")), sep="")
    for folder, names in twice.items():
        print(f"{folder}: {packages(folder)} packages, {len(names)} names defined twice")


if __name__ == "__main__":
    main()
