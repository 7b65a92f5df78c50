"""Our lanes of llama.cpp's cache types on what llama.cpp was asked: the same weights, prompts and scored tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvq_core.errors import SpecError
from kvq_core.methods import methods
from kvq_core.models import LoadedModel
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import end_of
from kvq_core.record.fields import Record
from kvq_core.servers.llama_cpp import Types
from kvq_core.spec import parse_spec

FULL = ("f32", "f16")  # what ours are measured against
READ_IN = {"chunk": 512, "own_chunk": "stored"}  # llama-server's own n_ubatch, and what it reads of it
PromptPairs = Sequence[tuple[list[int], list[int]]]  # a prompt's token ids, and those that are scored after it


def lane_of(types: Types, rotate: bool = True) -> dict[str, Any]:
    """The lane of a pair of types, as a spec has it; the prompt is read as llama.cpp reads it."""
    named = {"keys": types.keys, "values": types.values}
    quantized = {tensor: name for tensor, name in named.items() if name not in FULL}
    rules = [{"method": name, "tensors": tensor, **_turned(name, rotate)} for tensor, name in quantized.items()]
    if not rules:
        return {"label": str(types), "method": "fp16"}
    if len(set(named.values())) == 1:
        rules = [{**rules[0], "tensors": "both"}]
    return {"label": str(types), "rules": rules, "prefill": READ_IN}


def _turned(name: str, rotate: bool) -> dict[str, Any]:
    """The knob of formats that llama.cpp rotates: those that are stored in blocks."""
    return {"knobs": {"rotate": rotate}} if "rotate" in methods()[name].model_fields else {}


def simulate(
    model: LoadedModel, every: Sequence[Types], asked: PromptPairs, rotate: bool = True
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of every pair of types ``kld`` (positions,) in nats against full precision and whether the most probable token is
    the same (positions,), over all that was asked: all scored tokens of a prompt but the first, which the prefill's
    last position chose.

    Raises SpecError where a text reads as other tokens here than there, or a lane cannot run on the model.
    """
    found = kld_of(model, [lane_of(types, rotate) for types in every], asked)
    return [tuple(np.concatenate(parts) for parts in zip(*of, strict=True)) for of in found]  # type: ignore[misc]


def kld_of(
    model: LoadedModel, lanes: list[dict[str, Any]], asked: PromptPairs
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """What ``simulate`` finds, of any lanes as a spec has them, a prompt apart from the other."""
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in lanes]
    for ids, forced in asked:
        record, arrays = _compared(model, lanes, ids, forced)
        for at, lane in enumerate(record.lanes):
            if lane.status != "done":
                raise SpecError(f"The lane {lane.label} cannot be simulated: {lane.error}")
            kld, same = (arrays[f"lane/{at}/{name}"] for name in ("kld", "same_top"))
            found[at].append((kld.double().numpy(), same.bool().numpy()))
    return found


def _compared(
    model: LoadedModel, lanes: list[dict[str, Any]], ids: list[int], forced: list[int]
) -> tuple[Record, dict[str, Any]]:
    prompt, continuation = (model.tokenizer.decode(part) for part in (ids, forced))
    asked = {"prompt": prompt, "continuation": continuation, "chat": False, "lanes": lanes}
    spec = parse_spec({**asked, "capture": {"detail": "off"}, "score_prompt": "none"})
    done = end_of(compare_on(model, spec))
    reference = done.record.reference
    if (reference.prompt_token_ids, reference.token_ids) != (ids, forced):
        raise SpecError(
            "A prompt, or what is scored after it, reads as other tokens here than in llama.cpp; give continuations "
            "that begin at a word, or leave the simulated lanes out."
        )
    return done.record, done.arrays
