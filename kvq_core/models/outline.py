"""A model without its weights: what tells its prompts and the ids of its runs, and computes nothing."""

from typing import Any

import torch

from kvq_core.errors import ModelError
from kvq_core.models.loaded import LoadedModel
from kvq_core.models.loader import check_allowed, in_memory
from kvq_core.models.naming import dtype_here, known_by, tokenizer_of, unreadable
from kvq_core.models.source import files_of, resolve
from kvq_core.models.support import check_config, check_model
from kvq_core.models.text_part import text_part


class Outline(LoadedModel):
    """Its modules are on torch's meta device: they have shapes and no numbers."""

    @property
    def device(self) -> torch.device:
        """Where token ids would go."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def outline(id: str, revision: str | None = None) -> LoadedModel:
    """The model of that id as ``load`` would give it on this machine, without its weights where it is not in memory.

    Raises ModelError as ``load`` does, but for what only weights show.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    check_allowed(id, revision)
    if (held := in_memory(id, revision)) is not None:
        return held
    source = resolve(id, revision)
    try:
        folder, commit, options = files_of(source)
        config, _ = text_part(AutoConfig.from_pretrained(source.place, **options))
        check_config(config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype_here())
        tokenizer = tokenizer_of(id, source, options)
    except ModelError:
        raise
    except Exception as error:
        raise unreadable(id, error) from None
    check_model(model)
    known = known_by(source, id, folder, commit)
    return Outline(model=model, tokenizer=tokenizer, revision=commit or source.revision, **known)


def identity_of(id: str, revision: str | None = None) -> dict[str, Any]:
    """What the model of that id is known by, see ``naming.known_by``; neither weights nor tokenizer are read.

    Raises ModelError as ``load`` does for a model that cannot be had.
    """
    check_allowed(id, revision)
    source = resolve(id, revision)
    try:
        folder, commit, _ = files_of(source)
    except OSError as error:
        raise unreadable(id, error) from None
    return known_by(source, id, folder, commit)
