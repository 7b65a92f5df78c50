"""Loading a model once."""

import threading
from pathlib import Path
from typing import Any

import torch

from kvq_core.errors import ModelError
from kvq_core.machine.memory import give_back_spare, hold_spare
from kvq_core.models import identity
from kvq_core.models.choice import check_offered
from kvq_core.models.gguf.fetching import fetched_weights
from kvq_core.models.gguf.folder import Steps, last
from kvq_core.models.loaded import LoadedModel
from kvq_core.models.lockstep import ATTENTION, register_attention
from kvq_core.models.naming import dtype_here, known_by, tokenizer_of, unreadable
from kvq_core.models.source import Files, ModelSource, announce, files_of, find, path_of, resolve
from kvq_core.models.support import check_config, check_model, check_room, check_weights
from kvq_core.models.text_part import of_text, text_part
from kvq_core.settings import settings


def wrap(model: Any, tokenizer: Any, *, id: str, title: str = "", revision: str | None = None) -> LoadedModel:
    """Make a model that is already in memory usable; its hashes come from what it holds.

    Raises ModelError for an architecture the engine does not reproduce.
    """
    check_config(model.config)
    check_model(model)
    weights = identity.loaded_weights_hash(model)
    whole = identity.whole_in_memory(weights, model, tokenizer)
    size = sum(weight.nbytes for weight in model.parameters())
    return _ready(LoadedModel(id, title or id, revision, model, tokenizer, weights[:16], whole[:16], None, size))


_loading = threading.Lock()
_held: dict[str, LoadedModel] = {}  # one model, by what was asked for: weights are large


def load(id: str, revision: str | None = None) -> LoadedModel:
    """The model of that id: the bundled one, a GGUF file, a local directory, or the Hub's; kept in memory for the next
    run, a local one for as long as nothing changes there.

    Where there is a GPU, load before other threads compute: transformers makes half precision torch's default for the
    process while it reads the weights. Raises ModelError: unknown id, not reachable, not allowed on this instance, or
    not supported, with the reason.
    """
    check_allowed(id, revision)
    global _held
    with _loading:  # two visitors must not load the same weights twice
        if (asked := _asked(id, revision)) not in _held:
            give_back_spare()  # it is of the model before
            _held = {asked: _load(id, revision)}  # at once, for whoever asks what is loaded meanwhile
        return _held[asked]


def prepare(id: str, revision: str | None = None) -> Steps:
    """Download what ``load`` would have to download first, and convert a GGUF file that it would have to convert,
    telling how far; of other models, and of one that is loaded, nothing. Raises what ``load`` raises."""
    check_allowed(id, revision)
    if _asked(id, revision) not in _held:
        source = yield from find(id, revision)
        if not Path(source.place).is_dir():
            yield from announce(fetched_weights(source.place, source.revision, lambda: _checked(id, source)))


def check_allowed(id: str, revision: str | None) -> None:
    """Raises ModelError where this instance may not load the model."""
    check_offered(id)
    if revision is not None and settings().public:
        raise ModelError(
            f"Revision {revision[:80]!r} is not offered on this instance, where anybody could name one that nobody has "
            "reviewed. Leave revision out."
        )


def _asked(id: str, revision: str | None) -> str:
    """A model by what was asked for, and what lies there now."""
    path = path_of(id)
    return repr((id, revision, None if path is None or not path.exists() else identity.stamp(path)))


def in_memory(id: str, revision: str | None = None) -> LoadedModel | None:
    """The model of that id where it is loaded already; None where it is not, or the id is none."""
    try:
        return _held.get(_asked(id, revision))
    except ModelError:
        return None


def loaded_model() -> LoadedModel | None:
    """The model in memory; does not wait for one that is being loaded."""
    return next(iter(_held.values()), None)


def _forget_steps() -> None:
    for model in _held.values():
        model._stepping.forget()


hold_spare(_forget_steps)


def release() -> None:
    """Let go of the model in memory, which is freed once no run is on it: before another one is loaded."""
    with _loading:
        _held.clear()


def _load(id: str, revision: str | None) -> LoadedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # of the process, for good: progress is told through events
    source = resolve(id, revision)
    try:
        (folder, commit, options), config, renamed = _checked(id, source)
        if not Path(source.place).is_dir():  # whoever loads without preparing: others may see how far it is
            last(announce(fetched_weights(source.place, commit or source.revision, lambda: None)))
        place = {"dtype": dtype_here(), **({"device_map": "auto"} if torch.cuda.is_available() else {})}
        read: Any = AutoModelForCausalLM.from_pretrained(
            source.place,
            config=config,
            key_mapping=renamed,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **place,
            **options,
        )
        model, report = read
        check_weights(id, report if renamed is None else of_text(report, model))
        tokenizer = tokenizer_of(id, source, options)
    except ModelError:
        raise
    except Exception as error:
        raise unreadable(id, error) from None
    check_model(model)
    known = known_by(source, id, folder, commit) | {"revision": commit or source.revision}
    return _ready(LoadedModel(model=model, tokenizer=tokenizer, **known))


def _checked(id: str, source: ModelSource) -> tuple[Files, Any, dict[str, str] | None]:
    """A model's files, its configuration, and how names of weights change.

    Raises ModelError where the engine, or this machine's memory, cannot take it, and what transformers raises.
    """
    from transformers import AutoConfig

    files = files_of(source)
    config, renamed = text_part(AutoConfig.from_pretrained(source.place, **files.options))
    check_config(config)
    if not torch.cuda.is_available():
        check_room(id, config)
    return files, config, renamed


def _ready(loaded: LoadedModel) -> LoadedModel:
    register_attention()
    loaded.model.eval().requires_grad_(False).set_attn_implementation(ATTENTION)
    return loaded
