"""What a wheel holds: ``kvq_core``, ``kvq_kernels``, and ``kvq_explorer`` with the page and its data inside.

``kernels/`` is not a package, so that it cannot shadow the distribution of that name which transformers imports; nor do
``app``, ``ui`` and ``presets`` lie at the top level of an installed copy, where others may have packages so called.
Packages are found, not listed. A source distribution was not tried: wheels are made of a checkout.
"""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.build_py import build_py

PAGE = "kvq_explorer"


class BuildPage(build_py):
    """With app.py, and without what an earlier build left, which a wheel would hold beside what there is now."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [*found, (PAGE, "app", "app.py")] if package == PAGE else found


def requirements(name: str, only: str = "") -> list[str]:
    """The lines of a requirements file that begin so."""
    lines = Path(f"requirements-{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#") and line.startswith(only)]


kernels = find_packages("kernels")
inside = find_namespace_packages(include=["ui*", "presets*"])  # presets/ holds data alone
setup(
    packages=[*find_packages(include=["kvq_core*", PAGE]), *kernels, *(f"{PAGE}.{name}" for name in inside)],
    package_dir={
        **{name: f"kernels/{name.replace('.', '/')}" for name in kernels},
        **{f"{PAGE}.{name}": name.replace(".", "/") for name in inside},
    },
    cmdclass={"build_py": BuildPage},
    extras_require={
        "studies": requirements("studies"),
        "formats": requirements("formats"),
        "mcp": requirements("dev", only="gradio[mcp]"),
        "llama-cpp": requirements("dev", only="xllamacpp"),
    },
)
