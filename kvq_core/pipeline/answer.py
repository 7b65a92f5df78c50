"""A reference that is another file: what it answered to a prompt, with the logits that chose every token.

It is computed once a prompt, before the lanes' own model is loaded, and kept in the store under the hash of all that
decides it, so that lanes of any file with that tokenizer are scored against the same logits. What is kept is a
by-product: it may be deleted at any time.
"""

import hashlib
import json
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor

from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import Precision
from kvq_core.engine.prefill import SharedPrefill as Reading
from kvq_core.engine.script import Script
from kvq_core.errors import ModelError, SpecError, StoreError, excerpt
from kvq_core.machine.memory import release_memory
from kvq_core.models import LoadedModel, identity_of, in_memory, load, outline, release
from kvq_core.record.beside import read_beside, write_beside
from kvq_core.record.events import Loading, Prefill
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.record.store import Store
from kvq_core.settings import settings
from kvq_core.spec import ComparisonSpec

_SAMPLED = ("max_new_tokens", "temperature", "seed", "ignore_eos")  # of a spec, what decides an answer that is written


@dataclass(frozen=True)
class ReferenceAnswer:
    """``logits`` (tokens, vocabulary) float32: those that chose ``token_ids``, the first at the prompt's end."""

    token_ids: list[int]
    logits: Tensor

    def to_bytes(self) -> bytes:
        return tensors_as_bytes({"token_ids": torch.tensor(self.token_ids), "logits": self.logits.contiguous()})

    @classmethod
    def of_bytes(cls, data: bytes) -> "ReferenceAnswer":
        found = read_tensors(data)
        return cls(found["token_ids"].tolist(), found["logits"])


def check_kept_here(spec: ComparisonSpec) -> None:
    """Raises SpecError where strangers reach this instance: the logits of one prompt take megabytes of its disk."""
    if spec.reference is not None and settings().public:
        raise SpecError("reference is not offered on this instance; leave it out, or run your own.")


def check_reference(model: LoadedModel, spec: ComparisonSpec) -> None:
    """Whether the spec's reference can be one for a model. Raises SpecError where its tokens are others, ModelError
    where it cannot be had."""
    check_kept_here(spec)
    if spec.reference is None:
        return
    if reason := _other_tokens(model.id, model.revision, model.model_hash, spec.reference):
        raise SpecError(
            f"reference = {excerpt(spec.reference)} has another tokenizer than {model.title}: {reason}. Give another "
            "file of the same model, or leave reference out."
        )


@cache
def _other_tokens(id: str, revision: str | None, model_hash: str, reference: str) -> str | None:
    """How two models' tokens differ; None where they do not."""
    one, other = outline(id, revision), outline(reference)
    widths = [model.model.config.get_text_config().vocab_size for model in (other, one)]
    if widths[0] != widths[1]:
        return f"{widths[0]:,} logits against {widths[1]:,}"
    words, own = (model.tokenizer.get_vocab() for model in (other, one))
    if different := next((word for word, at in words.items() if own.get(word) != at), None):
        there = own.get(different)
        return f"{excerpt(different)} is token {words[different]} there and {'none' if there is None else there} here"
    return None if len(words) == len(own) else f"{len(words):,} tokens against {len(own):,}"


def reference_answer(
    model: LoadedModel, spec: ComparisonSpec, read: Script, store: Store | None
) -> Generator[Any, None, ReferenceAnswer]:
    """What the spec's reference answers to a prompt that ``model`` reads as ``read``: kept, or computed and kept.

    Lets go of the model in memory before the reference is loaded, and of the reference afterwards, unless they are one.
    Raises SpecError where the tokenizers differ, and what loading a model raises.
    """
    assert spec.reference is not None
    check_reference(model, spec)
    follow = None if spec.continuation is None else model.encode(spec.continuation)
    name = _name(model, spec, read, follow)
    if store is not None and (found := _kept(store, name)) is not None:
        return found
    if in_memory(spec.reference) is None:
        release()
        release_memory()
        yield Loading(spec.reference)
    answer = yield from _computed(load(spec.reference), spec, read, follow)
    release_memory()
    if store is not None:
        with suppress(StoreError):  # a store that cannot be written costs no result
            write_beside(store, name, answer.to_bytes())
    return answer


def _name(model: LoadedModel, spec: ComparisonSpec, read: Script, follow: list[int] | None) -> str:
    """Where an answer is kept: by the hash of all that decides it. The lanes' model reads the prompt, and no more."""
    decides: dict[str, Any] = {name: getattr(spec, name) for name in _SAMPLED} if follow is None else {"follow": follow}
    place = {"dtype": str(model.dtype), "device": model.device.type, "results_version": RESULTS_VERSION}
    segments = [(each.start, each.end) for each in read.segments]
    told = {"reference": identity_of(str(spec.reference))["model_hash"], "prompt": read.ids, "segments": segments}
    return f"references/{hashlib.sha256(json.dumps({**told, **place, **decides}, sort_keys=True).encode()).hexdigest()}"


def _kept(store: Store, name: str) -> ReferenceAnswer | None:
    """None where there is nothing, or nothing whole."""
    with suppress(StoreError, SafetensorError, KeyError):
        data = read_beside(store, name)
        return None if data is None else ReferenceAnswer.of_bytes(data)
    return None


def _computed(
    model: LoadedModel, spec: ComparisonSpec, read: Script, follow: list[int] | None
) -> Generator[Prefill, None, ReferenceAnswer]:
    """The reference's own pass, its cache in full precision; a step or a chunk of the prompt a turn."""
    prompt, new = len(read.ids), spec.max_new_tokens if follow is None else len(follow)
    if prompt + new > model.shape.context:
        raise ModelError(
            f"reference = {excerpt(spec.reference)}: {prompt} prompt tokens and {new} more are more than its "
            f"{model.shape.context} tokens of context."
        )
    later = [segment.start for segment in read.segments[1:]]
    reading = Reading(model, read.ids, (), later, Precision())
    for done in reading.run():
        yield Prefill(done, prompt + new)
    logits = [reading.logits[None].cpu()]

    def score(reference: Tensor, lanes: Tensor, targets: list[int]) -> None:
        logits.append(reference.cpu().clone())

    decode = Decode(model, reading, spec.model_copy(update={"lanes": ()}), [], follow=follow)
    for stage in (decode.encode(), decode.fill()):
        for _ in stage:
            pass
    for done, _ in enumerate(decode.steps(score, None, lambda rows: None), 1):
        yield Prefill(prompt + min(new, done), prompt + new)
    return ReferenceAnswer(decode.token_ids, torch.cat(logits))
