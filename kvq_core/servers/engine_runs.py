"""A user's own file under several cache types of the real engine, against its own F32 cache."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.models.gguf.header import read_header
from kvq_core.servers.asking import messages_of
from kvq_core.servers.llama_cpp import BLOCK_BYTES, EVERY, UBATCH, EngineError, LlamaCpp, Types
from kvq_core.servers.simulated import simulate
from kvq_core.servers.tops import Apart, Top
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.sources import READERS, PromptSource

REFERENCE = Types("f32", "f32")
FLOOR = Types("f16", "f16")
FLOOR_UBATCHES = (48, 16, 4)  # another division of the prompt rounds otherwise, as another machine does
RESAMPLED = 2000
IN_THE_ENGINE = "measured in llama.cpp"
SPARE = 8  # tokens of context beside those that are asked


@dataclass
class EngineDamage:
    """What a pair of cache types did to the model's answers: ``kld`` (positions,) nats against the F32 cache, ``same``
    whether the most probable token is the same; ``bytes_a_token`` of keys and values of all layers."""

    types: Types
    ubatch: int
    bytes_a_token: int
    kld: np.ndarray = field(default_factory=lambda: np.empty(0))
    same: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    texts: list[str] = field(default_factory=list)
    tokens_a_second: float | None = None
    source: str = IN_THE_ENGINE
    first: list[int] = field(
        default_factory=list
    )  # places of each prompt's first position, which simulations leave out

    def compare(self, answers: list[list[Top]], found: list[list[Top]]) -> None:
        """Take in what was found at every position of every prompt, against the reference's answers."""
        self.first = [0, *accumulate(map(len, found[:-1]))]
        apart = Apart.of(list(chain(*answers)), list(chain(*found)))
        self.kld, self.same = apart.kld, apart.same

    def apart(self, floor: "EngineDamage") -> bool:
        """Whether its mean KLD can be told from the floor's: the 95 % bootstrap interval of the paired difference over
        positions leaves 0 out."""
        from scipy.stats import bootstrap

        simulated = len(self.kld) < len(floor.kld)
        difference = self.kld - (np.delete(floor.kld, floor.first) if simulated else floor.kld)
        if len(difference) < 2 or not difference.any():
            return False
        found = bootstrap((difference,), np.mean, n_resamples=RESAMPLED, rng=np.random.default_rng(0))
        return bool(found.confidence_interval.low > 0 or found.confidence_interval.high < 0)


def read_prompts(file: Path) -> list[StudyPrompt]:
    """A text as one prompt, or rows as a study reads them. Raises SpecError for what cannot be read."""
    if file.suffix in READERS and file.suffix != ".txt":
        return list(PromptSource(file=str(file)).read()[0])
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}.") from None
    if not text.strip():
        raise SpecError(f"{file} is empty; give a prompt.")
    return [StudyPrompt(id="1", prompt=text)]


def measure(
    file: Path,
    every: list[Types],
    prompts: list[StudyPrompt],
    new_tokens: int,
    top: int = EVERY,
    threads: int = 2,
    simulated: LoadedModel | None = None,
) -> Iterator[EngineDamage]:
    """Every pair of types in turn, the reference's own F32 cache first and the floor second; then, of the same file as
    a model of ours, every pair as it is simulated here.

    Raises EngineError, ModelError and SpecError where the engine, the file or a simulated lane cannot be had.
    """
    element = _elements(file)
    reference = EngineDamage(REFERENCE, UBATCH, _bytes(REFERENCE, element))
    # a token is a letter
    room = max(len(str(messages_of(p))) + len(p.continuation or "") for p in prompts) + new_tokens + 512
    with LlamaCpp(file, REFERENCE, room, threads=threads) as engine:
        asked, answers = _asked(engine, reference, prompts, new_tokens, top)
    context = max(len(ids) + max(len(forced), new_tokens) for ids, forced in asked) + SPARE
    count = sum(map(len, answers))
    reference.kld, reference.same = np.zeros(count), np.ones(count, bool)
    yield reference
    longest = max(len(ids) for ids, _ in asked)
    divided = next((size for size in FLOOR_UBATCHES if size < longest), FLOOR_UBATCHES[-1])
    for types, ubatch in [(FLOOR, divided), *((types, UBATCH) for types in every)]:
        measured = EngineDamage(types, ubatch, _bytes(types, element))
        with LlamaCpp(file, types, context, ubatch, threads) as engine:
            found = [_under(engine, measured, ids, forced, new_tokens, top) for ids, forced in asked]
        measured.compare(answers, found)
        yield measured
    if simulated is not None:
        for types, (kld, same) in zip(every, simulate(simulated, every, asked), strict=True):
            yield EngineDamage(types, UBATCH, _bytes(types, element), kld, same, source="simulated")


def _asked(
    engine: LlamaCpp, reference: EngineDamage, prompts: list[StudyPrompt], new_tokens: int, top: int
) -> tuple[list[tuple[list[int], list[int]]], list[list[Top]]]:
    """Of every prompt its tokens and those that are scored after it, and what the reference gives to these."""
    asked, answers = [], []
    for prompt in prompts:
        ids = engine.asked.prompt(messages_of(prompt))
        said = engine.answer(ids, new_tokens)
        forced = said.ids if prompt.continuation is None else engine.tokens(prompt.continuation)
        if not forced:
            raise EngineError("The model answers nothing to a prompt: there is nothing to score.")
        asked.append((ids, forced))
        answers.append(engine.logprobs(ids, forced, top))
        reference.texts.append(said.text)
        reference.tokens_a_second = said.tokens_a_second
    return asked, answers


def _under(
    engine: LlamaCpp, measured: EngineDamage, ids: list[int], forced: list[int], new_tokens: int, top: int
) -> list[Top]:
    said = engine.answer(ids, new_tokens)
    measured.texts.append(said.text)
    measured.tokens_a_second = said.tokens_a_second
    return engine.logprobs(ids, forced, top)


def _elements(file: Path) -> tuple[int, int]:
    """Elements of keys and of values a token, over all layers, by the file's header."""
    told = read_header(file).values
    name = told.get("general.architecture")

    def at(key: str, default: Any = None) -> Any:
        return told.get(f"{name}.{key}", default)

    layers, heads = at("block_count"), at("attention.head_count")
    kv = at("attention.head_count_kv", heads)
    if layers is None or kv is None:
        raise EngineError(f"{file.name} does not say how many layers and KV heads it has.")
    total = sum(kv) if isinstance(kv, list) else kv * layers
    usual = at("embedding_length", 0) // max(1, max(heads) if isinstance(heads, list) else heads)
    return total * at("attention.key_length", usual), total * at("attention.value_length", usual)


def _bytes(types: Types, elements: tuple[int, int]) -> int:
    keys, values = (
        count * BLOCK_BYTES[name] // 32 for count, name in zip(elements, (types.keys, types.values), strict=True)
    )
    return keys + values
