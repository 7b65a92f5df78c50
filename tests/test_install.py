"""What set-up installs: the build of torch for a machine, what it says beforehand, and that each Python can have it."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import metadata as distribution
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kvq_core.models.bundled import RELEASE
from scripts import install
from scripts.install import Build, Installer, Package
from tests.test_dependencies import plain
from tests.test_imports import ROOT

INDEX_S = 50  # for what an index is asked
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GPU = [Package("torch", "2.13.0", 500_000_000), Package("nvidia-cublas", "13.1", 400_000_000)]
CPU = [Package("torch", "2.13.0+cpu", 190_000_000), Package("sympy", "1.14.0")]


class Machine(Installer):
    """An installer of a machine with these settings of pip, whose index would bring ``packages``."""

    def __init__(self, packages=(), uv: str = "", knows: bool = True, **settings: str):
        self.settings, self.uv, self.packages, self.knows, self.env = settings, uv, list(packages), knows, {}
        self.asked: list[tuple[str, ...]] = []

    def plan(self, *arguments: str) -> list[Package]:
        self.asked.append(arguments)
        return self.packages

    def takes(self, option: str) -> bool:
        return bool(self.uv) and self.knows


@pytest.fixture
def machine(monkeypatch):
    """A Linux machine without an NVIDIA driver, which reaches the CPU index or does not."""

    def set_up(nvidia: bool = False, reached: bool = True) -> None:
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(install, "has_nvidia", lambda: nvidia)
        monkeypatch.setattr(install, "answers", lambda url: reached)

    return set_up


def test_a_driver_is_known_by_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not install.has_nvidia(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert install.has_nvidia(tmp_path)
    (tmp_path / "nvidia-smi").touch(0o755)
    assert install.has_nvidia(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("uv", "knows", "taken"),
    [
        ("uv", True, ("--torch-backend=auto",)),
        ("uv", False, ("--index-url", install.CPU_INDEX)),
        ("", False, ("--index-url", install.CPU_INDEX)),
    ],
)
def test_without_a_driver_the_cpu_build_is_taken(machine, uv, knows, taken):
    machine()
    build = install.build_for("torch", Machine(uv=uv, knows=knows), [])
    assert build.arguments == taken and "CPU build" in build.said and "TORCH_ARGS" in build.said
    assert len(build.said.splitlines()) == 1


def test_the_machines_own_index_is_asked_first(machine):
    machine()
    own = {"extra-index-url": "file:///own"}
    assert install.build_for("torch", Machine(CPU, "uv", **own), []).arguments == ()
    assert install.build_for("torch", Machine(GPU, "uv", **own), []).arguments == ("--torch-backend=auto",)
    assert install.build_for("torch", Machine([], **own), []).arguments == ("--index-url", install.CPU_INDEX)


def test_where_no_cpu_build_is_reached_the_index_decides_and_the_line_says_so(machine):
    machine(reached=False)
    build = install.build_for("torch", Machine(GPU, "uv", **{"index-url": "file:///own"}), [])
    assert build.arguments == () and "does not answer" in build.said and "may be a GPU's" in build.said


def test_a_driver_or_arguments_of_ones_own_decide(machine):
    machine(nvidia=True)
    assert install.build_for("torch", Machine(uv="uv"), []) == Build((), build_said("the GPU build"))
    given = install.build_for("torch", Machine(uv="uv"), ["--index-url", "file:///mine"])
    assert given.arguments == ("--index-url", "file:///mine") and "TORCH_ARGS" in given.said


def build_said(begin: str) -> str:
    return f"torch: {begin}, as there is an NVIDIA driver. {install.OVERRIDE}"


def test_what_is_downloaded_is_told_with_sizes_and_torch_as_it_is_installed():
    packages = [Package("torch", "2.13.0+cpu", 190_000_000), Package("a", "1", 3_000_000), Package("b", "2")]
    line = install.told(packages)
    assert line == "To download: 3 packages, 193 MB (torch 190 MB, a 3 MB; of 1 the size is not known)."
    asked = Machine(CPU, "uv")
    install.everything("torch>=2", asked, Build(("--index-url", install.CPU_INDEX), ""))
    assert asked.asked[1][:3] == ("--extra-index-url", install.CPU_INDEX, "torch==2.13.0+cpu")


def test_uv_is_told_what_pip_is_told(monkeypatch):
    listed = (
        ":env:.find-links='/a\\n/b'\nglobal.cert='/c.pem'\nglobal.find-links='/never'\n"
        "global.extra-index-url='file:///x file:///y'\nuser.constraint='lock.txt'\n:env:.default-timeout='180'\n"
    )
    monkeypatch.setattr(install, "output", lambda *command, **env: listed)
    assert Installer("/some/uv").env == {
        "UV_FIND_LINKS": "/a,/b",
        "SSL_CERT_FILE": "/c.pem",
        "UV_INDEX": "file:///x file:///y",
        "UV_CONSTRAINT": "lock.txt",
        "UV_HTTP_TIMEOUT": "180",
    }
    assert Installer("/some/uv").command("a")[:3] == ["/some/uv", "pip", "install"]
    assert Installer("").env == {} and Installer("").command("a") == [*install.PIP, "install", "a"]


def test_answers_of_pip_and_uv_are_read(tmp_path):
    report = {"install": [{"metadata": {"name": "torch", "version": "2.13.0"}}]}
    assert list(install._of_report(json.dumps(report))) == [Package("torch", "2.13.0")]
    assert list(install._of_report("")) == [] == list(install._of_lock(""))
    (tmp_path / "b c.whl").write_bytes(b"12345")
    lock = '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ url = "https://x/a.whl", size = 7 }]\n'
    lock += f'[[packages]]\nname = "b"\nversion = "2"\nwheels = [{{ url = "file://{tmp_path}/b%20c.whl" }}]\n'
    assert list(install._of_lock(lock)) == [Package("a", "1", 7), Package("b", "2", 5)]


def test_the_order_is_torch_first_and_the_model_without_its_engine(machine, monkeypatch, capsys):
    machine()
    done: list[tuple[str, ...]] = []
    monkeypatch.setattr(Machine, "install", lambda self, *arguments: done.append(arguments))
    install.set_up(Machine(CPU, "uv"), [])
    torch = next(line for line in plain("requirements.txt") if line.startswith("torch"))
    assert done == [("--torch-backend=auto", torch), ("-r", "requirements.txt"), ("--no-deps", RELEASE)]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("torch: the CPU build") and said[1].startswith("To download: 4 packages, 380 MB")
    install.set_up_dev(Machine(CPU))
    assert done[3:] == [
        ("-r", "requirements-dev.txt", "-r", "requirements-studies.txt"),
        ("--no-deps", "-r", "requirements-formats.txt"),
    ]


def test_where_uv_fails_pip_tries_and_where_both_do_set_up_ends(monkeypatch):
    monkeypatch.setattr(install, "PIP", ("true",))
    failing = Machine(uv="false")
    failing.install("something")
    monkeypatch.setattr(install, "PIP", ("false",))
    with pytest.raises(SystemExit):
        failing.install("something")


def test_every_python_that_is_declared_is_allowed_by_all_that_is_installed():
    """What requirements.txt brings says for which Pythons it is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = SpecifierSet(project["requires-python"])
    assert [each for each in ("3.10", *PYTHONS, "3.15") if declared.contains(each)] == list(PYTHONS)
    wanted, seen = [Requirement(line) for line in plain("requirements.txt")], set()
    while wanted:
        name = wanted.pop().name
        if name in seen:
            continue
        seen.add(name)
        allowed = SpecifierSet(distribution(name).get("Requires-Python") or "")
        left = [each for each in PYTHONS if not allowed.contains(f"{each}.0")]
        assert not left, f"{name} {version(name)} is not for Python {left}"
        found = map(Requirement, requires(name) or [])
        wanted += [each for each in found if not each.marker or each.marker.evaluate({"extra": ""})]
    assert len(seen) > 50


def asked_of_an_index(command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    """What a command did; the test is skipped where the index takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, timeout=INDEX_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index takes more than {INDEX_S} s")


@pytest.fixture(scope="module")
def uv(tmp_path_factory) -> str:
    """uv of a package index, in a folder of its own."""
    folder = tmp_path_factory.mktemp("uv")
    command = [*install.PIP, "install", "--quiet", "--retries=0", "--target", str(folder), "uv"]
    if asked_of_an_index(command).returncode:
        pytest.skip("no package index has uv")
    return str(folder / "bin" / "uv")


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_all_requirements_resolve_from_wheels(uv, python):
    """Nothing is downloaded but what the index tells of its packages."""
    command = [uv, "pip", "compile", "--quiet", "--python-version", python, "--only-binary", ":all:"]
    command += ["--index-strategy", "unsafe-best-match", "requirements.txt", "requirements-dev.txt"]
    done = asked_of_an_index(command, **Installer(uv).env)
    if "Failed to fetch" in done.stderr or "error sending request" in done.stderr:
        pytest.skip("the package index does not answer")
    assert done.returncode == 0 and "\ntorch==" in done.stdout, done.stderr[-2000:]


GONE = set(  # from the standard library, by Python 3.14
    """
    aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib
    ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib
    """.split()
)
GONE_MEMBERS = set(
    """
    ast.Num ast.Str ast.Bytes ast.NameConstant ast.Ellipsis asyncio.get_child_watcher asyncio.set_child_watcher
    configparser.SafeConfigParser importlib.find_loader importlib.resources.contents locale.resetlocale
    logging.warn pkgutil.find_loader pkgutil.get_loader pkgutil.ImpImporter re.template sqlite3.version ssl.wrap_socket
    tempfile.mktemp typing.ByteString typing.io unittest.makeSuite urllib.request.URLopener
    urllib.request.FancyURLopener datetime.utcnow datetime.utcfromtimestamp
    """.split()
)


@pytest.mark.slow
def test_nothing_is_used_that_newer_pythons_took_out():
    folders = ("kvq_core", "kvq_explorer", "ui", "kernels", "scripts", "benchmarks", "tests")
    for file in [ROOT / "app.py", *(each for folder in folders for each in (ROOT / folder).rglob("*.py"))]:
        modules, members = _used(ast.parse(file.read_text(encoding="utf-8")))
        bad = {each for each in modules if each.split(".")[0] in GONE} | members & GONE_MEMBERS
        assert not bad, f"{file}: {sorted(bad)}"


def test_what_they_took_out_is_seen():
    modules, members = _used(ast.parse("import cgi.x\nfrom re import template\nd = datetime.datetime.utcnow()"))
    assert "cgi.x" in modules and {"re.template", "datetime.utcnow"} <= members & GONE_MEMBERS


def _used(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Modules that are imported, and members by the last two of their names."""
    modules, members = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
            members |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            members.add(f"{getattr(node.value, 'attr', getattr(node.value, 'id', ''))}.{node.attr}")
    return modules, members
