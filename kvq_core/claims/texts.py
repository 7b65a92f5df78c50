"""The texts claims are measured on: stretches of the standard library's help topics, presets' prompts, source code, and
texts of two more domains that are made from a seed."""

import importlib.util
import random
import uuid
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from kvq_core.codebooks.files import CodebookInfo, codebooks
from kvq_core.errors import SpecError
from kvq_core.frozen import Frozen
from kvq_core.models import LoadedModel
from kvq_core.presets import preset
from kvq_core.training.texts import BUILT_IN, SEQUENCE, read_texts

PAIRS, PROBLEMS = 40, 40  # of a made text: more than 640 tokens of any tokenizer
_KEPT: dict[str, list[int]] = {}


class Text(Frozen):
    """Where a text comes from: ``topics`` starts at a share of the help topics' tokens, ``preset`` is a preset's
    prompt under the chat template, ``module`` the source of a standard library module; ``uuids`` (random keys and
    values, as InfiniteBench's KV retrieval has them) and ``mathematics`` (word problems solved step by step, in the
    manner of GSM8K) are made from ``seed``."""

    kind: Literal["topics", "preset", "module", "uuids", "mathematics"]
    start: float = Field(0.0, ge=0, lt=1)
    name: str = ""
    seed: int = 0

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind in ("preset", "module")) != bool(self.name):
            raise ValueError("a preset or module has a name, other texts have none")
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
    elif text.kind == "module":
        found, source = model.render(_source(text.name), None, False), f"source of the module {text.name}"
    else:
        made = key_values(text.seed) if text.kind == "uuids" else word_problems(text.seed)
        found, source = model.render(made, None, False), f"{text.kind} made from seed {text.seed}"
    if len(found) < count:
        raise SpecError(f"{source} has {len(found)} tokens for {model.title}; {count} are needed.")
    return found[:count], source


def key_values(seed: int) -> str:
    """A JSON object of random UUIDs, as InfiniteBench's KV retrieval has them."""
    draw = random.Random(seed)
    names = [str(uuid.UUID(int=draw.getrandbits(128), version=4)) for _ in range(2 * PAIRS)]
    pairs = ", ".join(f'"{key}": "{value}"' for key, value in zip(names[::2], names[1::2], strict=True))
    return f"Extract the value corresponding to the specified key in the JSON object below.\n\n{{{pairs}}}"


def word_problems(seed: int) -> str:
    """Word problems of elementary arithmetic with their solutions, in the manner of GSM8K."""
    draw = random.Random(seed)
    return "\n\n".join(_problem(draw) for _ in range(PROBLEMS))


def _problem(draw: random.Random) -> str:
    who, what = (
        draw.choice(["Ada", "Boris", "Chen", "Dina", "Emil"]),
        draw.choice(["apples", "stamps", "eggs", "cards"]),
    )
    boxes, each, given, price = (draw.randint(*ends) for ends in ((3, 9), (6, 24), (2, 15), (2, 9)))
    all_of, left = boxes * each, boxes * each - given
    return (
        f"Question: {who} has {boxes} boxes with {each} {what} in each. {who} gives {given} {what} to a friend and "
        f"sells the rest for ${price} apiece. How many dollars does {who} get?\n"
        f"Answer: {who} has {boxes} * {each} = {all_of} {what}. After the gift {all_of} - {given} = {left} {what} are "
        f"left. They bring {left} * {price} = ${left * price}.\n#### {left * price}"
    )


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
