"""Query subspaces of other prompts, to compare a run's own with (SQuat, Figure 2): one of its kind, one of another."""

import hashlib
import pydoc_data.topics
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from kvq_core.capture.spectra import query_directions
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.errors import SpecError
from kvq_core.machine import files
from kvq_core.models import LoadedModel
from kvq_core.settings import settings

TOKENS = 256  # of each text, at most
REQUEST = """Read the following note from a harbour office and answer the question below it.

The ferry to the outer islands leaves at seven in summer and at nine in winter, because the pilots will not take the northern channel in the dark. Cargo must be on the quay two hours before, weighed and labelled; animals travel on the lower deck, and no one may leave them alone in a swell. When the barometer falls by more than eight millibars in a night the master may turn back at the lighthouse, and tickets then stay valid for a week. Last year that happened on eleven mornings, nine of them in January and February.

Why does the ferry leave later in winter, what should a farmer with two sheep expect, and how likely is it that a crossing in January fails? Explain your reasoning step by step."""  # noqa: E501


class OtherPrompt(NamedTuple):
    """A text the subspace of whose queries is compared with the run's; ``description`` is how the record names it."""

    description: str
    ids: list[int]


def other_prompts(model: LoadedModel, chat: bool) -> dict[str, OtherPrompt]:
    """A prompt of the kind of a run's own (``chat``: a request through the chat template; else running text), and one
    of the other kind, each cut to TOKENS tokens."""
    by = "through the model's chat template"
    try:
        asked = model.render(REQUEST, None, True)[:TOKENS]
    except SpecError:  # a run whose prompt goes as it is needs no template
        asked = model.render(REQUEST, None, False)[:TOKENS]
        by = "without a chat template, as the model has none that takes it"
    request = OtherPrompt(f"a fixed request about a ferry, {len(asked)} tokens, {by}", asked)
    read = model.encode(pydoc_data.topics.topics["objects"])[:TOKENS]
    prose = OtherPrompt(f"Python's reference on objects, the first {len(read)} tokens as they are", read)
    return {"same_kind": request, "other_kind": prose} if chat else {"same_kind": prose, "other_kind": request}


def directions_of(model: LoadedModel, ids: list[int]) -> Tensor:
    """Right singular vectors of a prompt's queries, strongest first: (layers, kv_heads, d, d) float32.

    They depend on the model and the text alone, so they are computed once and kept under KVQ_HOME, if they can be.
    """
    parts = (model.model_hash, model.dtype, model.device.type, ids)
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    file = settings().home / "subspaces" / digest
    if (kept := files.read_bytes(file)) is not None:
        return load(kept)["directions"]
    prefill = SharedPrefill(model, ids)
    for _ in prefill.run():
        pass
    shape = model.shape
    found = torch.zeros(shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim)
    for group in (each.of(each.captured) for each in prefill.groups):
        if group is not None:
            found[group.layers] = query_directions(group.query_gram).cpu()
    files.keep_bytes(file, save({"directions": found}))
    return found
