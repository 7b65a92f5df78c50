"""How large the project is: files and lines of its code, and kilobytes of its papers. ``python scripts/size.py``.

Counted are the files that git keeps, with blank lines and comments.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("kvq_core", "ui", "kernels", "tests", "benchmarks", "scripts")
PAPERS = {"README": ("README.md",), "CHANGELOG": ("CHANGELOG.md",), "docs": ("docs/*.md",)}


def kept(*patterns: str) -> list[Path]:
    """Files of the work tree that git keeps and that match."""
    named = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True)
    found = (ROOT / name for name in named.stdout.decode().split("\0") if name)
    return [file for file in found if file.is_file()]


def code() -> dict[str, tuple[int, int]]:
    """Files and lines of Python by folder, ``app.py`` with the page."""
    found = {}
    for folder in CODE:
        files = kept(f"{folder}/*.py", *(["app.py"] if folder == "ui" else []))
        found[folder] = len(files), sum(len(file.read_bytes().splitlines()) for file in files)
    return found


def papers() -> dict[str, float]:
    """Kilobytes by paper."""
    return {name: sum(file.stat().st_size for file in kept(*each)) / 1000 for name, each in PAPERS.items()}


def main() -> None:
    for folder, (files, lines) in code().items():
        print(f"{folder:12}{files:5} files {lines:8,} lines")
    print(" / ".join(papers()), "".join((": ", " / ".join(f"{size:.0f}" for size in papers().values()), " KB")), sep="")


if __name__ == "__main__":
    main()
