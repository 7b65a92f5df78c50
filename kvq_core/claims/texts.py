"""The texts claims are measured on: stretches of the standard library's help topics, presets' prompts, source code."""

import importlib.util
import random
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvq_core.codebooks.files import CodebookInfo, codebooks
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.presets import preset
from kvq_core.training.texts import BUILT_IN, SEQUENCE, read_texts

_KEPT: dict[str, list[int]] = {}


class Text(BaseModel):
    """Where a text comes from: ``topics`` starts at a share of the help topics' tokens, ``preset`` is a preset's
    prompt under the chat template, ``module`` the source of a standard library module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["topics", "preset", "module"]
    start: float = Field(0.0, ge=0, lt=1)
    name: str = ""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind == "topics") == bool(self.name):
            raise ValueError("a preset or module has a name, topics have none")
        return self


def token_ids(model: LoadedModel, text: Text, count: int) -> tuple[list[int], str]:
    """The first ``count`` tokens of a text and the words that name its source.

    A stretch of the topics that any of the model's codebooks was trained on is passed over, so that learned methods are
    measured on text they have not seen. Raises SpecError where the text is too short.
    """
    if text.kind == "topics":
        lead = model.render("", None, False)  # a beginning-of-text token, where the tokenizer has one
        ids = _topics(model)
        start = first_unseen(int(text.start * len(ids)), count, trained_stretches(model))
        found, source = [*lead, *ids[start : start + count - len(lead)]], f"{BUILT_IN}, from token {start}"
    elif text.kind == "preset":
        spec = preset(text.name).spec
        chat = spec.chat and bool(getattr(model.tokenizer, "chat_template", None))
        found, source = model.render(spec.prompt, spec.system if chat else None, chat), f"preset {text.name}"
    else:
        found, source = model.render(_source(text.name), None, False), f"source of the module {text.name}"
    if len(found) < count:
        raise SpecError(f"{source} has {len(found)} tokens for {model.title}; {count} are needed.")
    return found[:count], source


def first_unseen(start: int, count: int, seen: list[range]) -> int:
    """The first position from ``start`` on where ``count`` tokens overlap no range."""
    for stretch in sorted(seen, key=lambda r: r.start):
        if stretch.start < start + count and start < stretch.stop:
            start = stretch.stop
    return start


def trained_stretches(model: LoadedModel) -> list[range]:
    """Tokens of the topics that codebooks of this model were trained on."""
    own = [b.info for b in codebooks() if b.info.weights_hash == model.weights_hash or b.info.model == model.id]
    total = len(_topics(model))
    return [r for info in own if info.source == BUILT_IN for r in training_pieces(info, total, model.shape.context)]


def training_pieces(info: CodebookInfo, total: int, context: int) -> list[range]:
    """Which of ``total`` tokens the training took: the same cut and shuffle as codebooks.texts.sequences makes."""
    length = min(SEQUENCE, context, max(1, total // 8))
    pieces = [range(start, start + length) for start in range(0, total - length + 1, length)]
    random.Random(info.settings["seed"]).shuffle(pieces)
    held, trained = (-(-tokens // length) for tokens in (info.held_out_tokens, info.train_tokens))
    return pieces[held : held + trained]


def _topics(model: LoadedModel) -> list[int]:
    """Tokens of all topics; tokenizing them takes a second, so those of the last model are kept."""
    if model.model_hash not in _KEPT:
        _KEPT.clear()
        _KEPT[model.model_hash] = model.encode("\n\n".join(read_texts(None).documents))
    return _KEPT[model.model_hash]


def _source(module: str) -> str:
    found = importlib.util.find_spec(module)
    if found is None or not found.origin or not found.origin.endswith(".py"):
        raise SpecError(f"There is no source of a module {module!r}.")
    return Path(found.origin).read_text(encoding="utf-8")
