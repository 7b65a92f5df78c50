"""What a cache format costs by our own lanes, on the tokens that a server was asked, cut to as many log-probabilities;
and a model that is run here as a server's baseline."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.errors import SpecError, abbreviate
from kvq_core.models import LoadedModel, load
from kvq_core.servers.dialects import Messages, Tokens
from kvq_core.servers.llama_cpp import Types
from kvq_core.servers.simulated import lane_of
from kvq_core.servers.tops import Top
from kvq_core.spec import parse_spec

PLAIN: dict[str, Any] = {"label": "floor", "method": "fp16"}
Texts = Sequence[tuple[Tokens, Tokens]]


def predict(model: str, form: str, texts: Texts, top: int) -> dict[str, list[list[float]]]:
    """By lane, ``format`` first, and by prompt, nats at every scored position: the format as its engine reads a prompt,
    ``unrotated`` where that is another one, and ``floor``, a cache that is rounded to fp16.

    Raises ModelError and SpecError where the model or a lane cannot be had.
    """
    loaded, types = load(model), Types.of(form)
    lanes = {"format": lane_of(types), "floor": PLAIN}
    if (unrotated := lane_of(types, rotate=False)) != lanes["format"]:
        lanes["unrotated"] = {**unrotated, "label": "unrotated"}
    found: dict[str, list[list[float]]] = {name: [] for name in lanes}
    for tokens, forced in texts:
        _check(loaded, tokens, forced)
        own, others = _lists(loaded, list(lanes.values()), tokens, forced, top)
        for name, tops in zip(lanes, others, strict=True):
            found[name].append([one.kld(other) for one, other in zip(own, tops, strict=True)])
    return found


class OwnBaseline:
    """A model that is run here in full precision, as what a server is measured against."""

    def __init__(self, model: str):
        self.model = load(model)
        self.facts: dict[str, Any] = {"engine": "KVQ Explorer", "model": self.model.id, "hash": self.model.model_hash}

    def prompt(self, messages: Messages) -> Tokens:
        try:
            text = self.model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program of the model's, and may fail in any way
            said = abbreviate(" ".join(str(error).split()), 200)
            raise SpecError(f"{self.model.title} has no chat template that takes these messages: {said}") from None
        return list(self.model.tokenizer(text, add_special_tokens=False)["input_ids"])

    def tokens(self, text: str) -> Tokens:
        return list(self.model.encode(text))

    def answer(self, tokens: Tokens, count: int) -> Tokens:
        _check(self.model, tokens, [0] * count)
        decode = _decode(self.model, [PLAIN], tokens, {"max_new_tokens": count})
        for _ in decode.steps(lambda *_: None, None, lambda _: None):
            pass
        return [token for token in decode.token_ids if token not in self.model.eos_ids]

    def lists(self, tokens: Tokens, forced: Tokens, top: int) -> tuple[list[Top], list[Top]]:
        own, (floor,) = _lists(self.model, [PLAIN], tokens, forced, top)
        return own, floor


def _check(model: LoadedModel, tokens: Tokens, forced: Tokens) -> None:
    if not all(isinstance(token, int) and 0 <= token < len(model.tokenizer) for token in [*tokens, *forced]):
        raise SpecError(f"{model.title} has other tokens than the server; give the model that it serves.")
    if len(tokens) + len(forced) > model.shape.context:
        raise SpecError(f"{model.title} reads {model.shape.context:,} tokens at most; give shorter prompts.")


def _decode(
    model: LoadedModel, lanes: list[dict[str, Any]], tokens: Tokens, asked: dict[str, Any], follow: Tokens | None = None
) -> Decode:
    """Lanes that have read a prompt. Raises SpecError where one cannot."""
    prefill = SharedPrefill(model.stepping(), tokens)
    for _ in prefill.run():
        pass
    spec = parse_spec({"prompt": "-", "chat": False, "lanes": lanes, **asked})
    decode = Decode(model, prefill, spec, list(spec.lanes), follow=follow)
    for _ in (*decode.encode(), *decode.fill()):
        pass
    for state in decode.states:
        if state.error:
            raise SpecError(f"The lane {state.lane.label} cannot be predicted: {state.error}")
    return decode


def _lists(
    model: LoadedModel, lanes: list[dict[str, Any]], tokens: Tokens, forced: Tokens, top: int
) -> tuple[list[Top], list[list[Top]]]:
    """Lists of the full-precision cache, and of every lane. The prompt's last token is decoded, as a server decodes it
    that has stored all before it."""
    rows: tuple[list[Tensor], list[Tensor]] = ([], [])

    def score(reference: Tensor, scored: Tensor, _: list[int]) -> None:
        rows[0].append(_cut(reference[None], top))
        rows[1].append(_cut(scored, top))

    decode = _decode(model, lanes, tokens[:-1], {"continuation": "-"}, follow=[*tokens[-1:], *forced])
    for _ in decode.steps(score, None, lambda _: None):
        pass
    own, others = (torch.cat(parts, 1).numpy() for parts in rows)
    return _tops(own[0]), [_tops(other) for other in others]


def _cut(logits: Tensor, top: int) -> Tensor:
    """(rows, positions, vocabulary) as (rows, positions, 2, top): ids and log-probabilities."""
    found = logits.double().log_softmax(-1).topk(min(top, logits.shape[-1]), -1)
    return torch.stack([found.indices.double(), found.values], -2).cpu()


def _tops(rows: np.ndarray) -> list[Top]:
    return [Top.of(ids.astype(int).tolist(), logprobs.tolist()) for ids, logprobs in rows]
