"""Loading a model once, and what the rest of the project may know about it."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvq_core.errors import ModelError, SpecError
from kvq_core.methods import ModelRef, ModelShape
from kvq_core.models import bundled, identity
from kvq_core.models.chat import conversation
from kvq_core.models.choice import KNOWN, check_offered
from kvq_core.models.lockstep import ATTENTION, register
from kvq_core.models.probe import TOKENS, cached_rotations, probe
from kvq_core.models.rope import Rope, Rotation
from kvq_core.models.shape import key_bias_of, rope_of, shape_of
from kvq_core.models.support import (
    attention_modules,
    check_config,
    check_model,
    check_pass,
    check_room,
    check_weights,
)
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL


@dataclass
class LoadedModel:
    """A model, its tokenizer and the facts a run records. Neither weights nor modules are ever changed, so that runs in
    several threads may share it.

    ``weights_hash`` names the weights, to which learned data belongs; ``model_hash`` all that decides what the model
    answers: weights, configuration, tokenizer and chat template.
    """

    id: str
    title: str
    revision: str | None
    model: Any  # a transformers causal language model; its attributes differ by architecture
    tokenizer: Any
    weights_hash: str
    model_hash: str

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.id, self.weights_hash)

    @cached_property
    def shape(self) -> ModelShape:
        return shape_of(self.model)

    @cached_property
    def layer_devices(self) -> tuple[torch.device, ...]:
        """The device of each layer's attention; several where the model is larger than one device."""
        return tuple(next(m.parameters()).device for m in attention_modules(self.model))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @cached_property
    def widest(self) -> int:
        """Weights in the widest matrix of a layer."""
        layers = self.model.base_model.layers
        return max(weight.numel() for weight in layers.parameters() if weight.dim() > 1)

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return self.model.get_input_embeddings().weight.device

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer, as ``generate`` knows them."""
        eos = self.model.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None and self.tokenizer is not None else eos
        return frozenset(eos if isinstance(eos, Iterable) else () if eos is None else (eos,))

    @cached_property
    def key_bias(self) -> Tensor | None:
        """The bias of the layers' key projections, before RoPE: (layers, kv_heads, head_dim) float32. None where there
        is none, or a norm follows, so that it is no constant of the keys."""
        return key_bias_of(self.model) if self.shape.key_bias == "bias" else None

    def rope(self, tokens: int) -> Rope:
        """RoPE of all layers for positions 0 .. tokens-1, applied by the model's own function."""
        rope, rotations = rope_of(self.model, tokens), self.rotations
        return rope if set(rotations) == {"rope"} else replace(rope, rotations=rotations)

    @cached_property
    def rotations(self) -> tuple[Rotation, ...]:
        """How each layer rotates its keys: looked at once, with the model running a few tokens, and then known."""
        memo = f"{self.model_hash}-{str(self.dtype).removeprefix('torch.')}"
        found = cached_rotations(memo, self.shape.layers, lambda: probe(self.model, rope_of(self.model, TOKENS)))
        self.shape = replace(self.shape, unknown_rope=tuple(i for i, kind in enumerate(found) if kind == "unknown"))
        return found

    def render(self, prompt: str, system: str | None, chat: bool) -> list[int]:
        """Token ids of the prompt as the model sees it.

        ``system`` None keeps the chat template's own system message, "" asks for none. Raises SpecError where the
        model has no chat template, or one that refuses or leaves out what it is given.
        """
        if not chat:
            return list(self.tokenizer(prompt)["input_ids"])
        if not getattr(self.tokenizer, "chat_template", None):
            raise SpecError(f"{self.id} has no chat template; set chat = false to send the prompt as it is.")
        return self.encode(conversation(self.tokenizer, self.id, prompt, system))

    def encode(self, text: str) -> list[int]:
        """Token ids of text that follows something, no special tokens added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def forward(self, ids: Tensor, start: int, attend: Any, last_only: bool = False) -> Tensor:
        """One forward pass: ids (rows, tokens) at positions start, start+1, ... -> logits (rows, tokens, vocabulary).

        ``attend`` answers every attention call (see lockstep.py). Logits are float32; with ``last_only`` they are those
        of the last token alone.
        """
        positions = torch.arange(start, start + ids.shape[1], device=self.device)[None]
        out = self.model(
            input_ids=ids.to(self.device),
            position_ids=positions,
            use_cache=False,
            kvq=attend,
            logits_to_keep=1 if last_only else 0,
        )
        return out.logits.float()

    def checked(self, logits: Tensor) -> Tensor:
        """The logits of a full-precision pass. Raises ModelError where the model does not answer numbers."""
        if not bool(logits.isfinite().all()):
            raise ModelError(
                f"{self.title} answers NaN or infinity instead of numbers: its weights are damaged, or its numbers are "
                f"too large for {str(self.dtype).removeprefix('torch.')}. Check its files, or pick another model."
            )
        return logits


def wrap(model: Any, tokenizer: Any, *, id: str, title: str = "", revision: str | None = None) -> LoadedModel:
    """Make a model that is already in memory usable; its hashes come from what it holds.

    Raises ModelError for an architecture the engine does not reproduce.
    """
    check_config(model.config)
    check_model(model)
    weights = identity.weights_in_memory(model)
    whole = identity.whole_in_memory(weights, model, tokenizer)
    return _ready(LoadedModel(id, title or id, revision, model, tokenizer, weights[:16], whole[:16]))


def bundled_folder() -> Path:
    """Where the converted default model lies; converts it on first use."""
    return bundled.convert(bundled.folder())


_loading = threading.Lock()
_held: dict[str, LoadedModel] = {}  # one model, by what was asked for: weights are large


def load(id: str, revision: str | None = None) -> LoadedModel:
    """The model of that id: the bundled one, a local directory, or the Hub's; kept in memory for the next run, a
    directory's for as long as nothing changes there.

    Where there is a GPU, load before other threads compute: transformers makes half precision torch's default for the
    process while it reads the weights. Raises ModelError: unknown id, not reachable, not allowed on this instance, or
    not supported, with the reason.
    """
    check_offered(id)
    if revision is not None and settings().public:
        raise ModelError(
            f"Revision {revision[:80]!r} is not offered on this instance, where anybody could name one that nobody has "
            "reviewed. Leave revision out."
        )
    global _held
    with _loading:  # two visitors must not load the same weights twice
        asked = repr((id, revision, identity.stamp(Path(id).expanduser()) if _local(id) else None))
        if asked not in _held:
            _held = {asked: _load(id, revision)}  # at once, for whoever asks what is loaded meanwhile
        return _held[asked]


def loaded_model() -> LoadedModel | None:
    """The model in memory; does not wait for one that is being loaded."""
    return next(iter(_held.values()), None)


def _load(id: str, revision: str | None) -> LoadedModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # of the process, for good: progress is told through events
    source, found = _source(id, revision)
    try:
        folder, commit = _files(source, found)
        options = {"revision": commit or found, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(source, **options)
        check_config(config)
        cuda = torch.cuda.is_available()
        if not cuda:
            check_room(id, config)
        place = {"device_map": "auto", "dtype": _half()} if cuda else {"dtype": torch.float32}
        read: Any = AutoModelForCausalLM.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **place, **options
        )
        model, report = read
        check_weights(id, report)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except ModelError:
        raise
    except Exception as error:  # whatever other people's files make their readers raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"Model {id!r} could not be loaded: {said[:200].rstrip(' .:')}. Check its id or folder, and the connection "
            f"for a model of the Hub; {DEFAULT_MODEL} needs neither."
        ) from None
    check_model(model)
    title = dict(KNOWN).get(id, id).removesuffix(" (bundled)")
    weights = commit or identity.weights_of(folder)
    whole = commit or identity.whole_of(weights, folder)
    return _ready(LoadedModel(id, title, commit or found, model, tokenizer, weights[:16], whole[:16]))


def _files(source: str, revision: str | None) -> tuple[Path, str | None]:
    """The folder a model's files lie in, and for a model of the Hub the commit they are of: a branch may move while it
    is loaded. Raises OSError for a model that cannot be had."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    if Path(source).is_dir():
        return Path(source), None
    config = cached_file(source, "config.json", revision=revision)
    return Path(str(config)).parent, extract_commit_hash(config, None)


def _half() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def _ready(loaded: LoadedModel) -> LoadedModel:
    register()
    loaded.model.eval().requires_grad_(False)
    loaded.model.set_attn_implementation(ATTENTION)
    check_pass(loaded.model)
    return loaded


def _local(id: str) -> bool:
    """Whether a model id is a path on this machine."""
    return Path(id).expanduser().is_absolute() or id.startswith((".", "~"))


def _source(id: str, revision: str | None) -> tuple[str, str | None]:
    """Folder or Hub id to load from, and the revision; refuses ids that are neither."""
    path, local = Path(id).expanduser(), _local(id)
    if revision is not None and (local or id == DEFAULT_MODEL):
        raise ModelError(f"revision = {revision!r}: {id!r} is on this machine and has no revisions; leave it out.")
    if id == DEFAULT_MODEL:
        return str(bundled_folder()), None
    if local:
        if settings().public or not (path / "config.json").is_file():
            raise ModelError(
                f"Model {id!r} is not a model directory this instance may read; give a Hub id such as "
                "'Qwen/Qwen3-0.6B', or a directory with config.json and safetensors."
            )
        return str(path), None
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(id)
    except HFValidationError:
        raise ModelError(f"Model id {id[:80]!r} is not valid; a Hub id looks like 'owner/name'.") from None
    return id, revision
