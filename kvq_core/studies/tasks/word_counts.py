"""Common and frequent words: aggregation over the whole of a list (RULER, arXiv:2404.06654, section 3)."""

from typing import ClassVar, Self

from numpy.random import Generator
from pydantic import Field, model_validator

from kvq_core.errors import SpecError
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import Suite
from kvq_core.studies.tasks.words import draw_words

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


class CommonWords(Suite):
    """A shuffled list of words, a few of which stand there often and the others seldom."""

    title: ClassVar = "Common words"
    asks: ClassVar = "The words that a long list holds most often."
    source: ClassVar = "RULER, arXiv:2404.06654"
    new_tokens: ClassVar = 32

    common: int = Field(1, ge=1, le=20, description="Words that are common, all of which are asked for.")
    times: int = Field(8, ge=2, le=100, description="How often each of them is in the list.")
    others: int = Field(8, ge=1, le=100, description="Words that are not common.")
    once: int = Field(1, ge=1, le=99, description="How often each of those is in the list; less than times.")

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        if self.once >= self.times:
            raise SpecError(
                f"suite common_words: once = {self.once} is not allowed; give less than times, {self.times}."
            )
        return self

    def words(self, number: int) -> int:
        return self.common * self.times + self.others * self.once

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        held = draw_words(random, "nouns", self.common + self.others)
        common, others = held[: self.common], held[self.common :]
        listed = common * self.times + others * self.once
        shuffled = [listed[i] for i in random.permutation(len(listed))]
        text = " ".join(f"{i}. {word}" for i, word in enumerate(shuffled, 1))
        return StudyPrompt(
            group=f"{len(listed)} words",
            prompt=_asked(f"Below is a numbered list of words.\n{text}\n", self.common),
            answer={"right": common, "wrong": others},
            verifier="choice",
            facts={"words": len(listed), "common": self.common, "times": self.times, "once": self.once},
        )


class FrequentWords(Suite):
    """Made-up words whose frequencies fall off as a power of their rank."""

    title: ClassVar = "Frequent words"
    asks: ClassVar = "The most frequent of made-up words, whose frequencies fall off as a power of their rank."
    source: ClassVar = "RULER, arXiv:2404.06654"
    new_tokens: ClassVar = 32

    asked: int = Field(1, ge=1, le=10, description="Most frequent words that are asked for.")
    kinds: int = Field(6, ge=2, le=100, description="Different words; more than are asked for.")
    length: int = Field(40, ge=10, le=100_000, description="Words of the text, about.")
    power: float = Field(2.0, ge=0.5, le=4, description="A word of rank r has a share of the text like r to minus it.")

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        if self.asked >= self.kinds:
            raise SpecError(
                f"suite frequent_words: asked = {self.asked} is not allowed; give less than kinds, {self.kinds}."
            )
        if self._counts()[self.asked - 1] == self._counts()[self.asked]:
            raise SpecError(
                f"suite frequent_words: length = {self.length} tells the {self.asked} most frequent words from no "
                "others; give a longer one, or ask for fewer."
            )
        return self

    def words(self, number: int) -> int:
        return self.length

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        made = _made_up(random, self.kinds)
        listed = [word for word, times in zip(made, self._counts(), strict=True) for _ in range(times)]
        text = " ".join(listed[i] for i in random.permutation(len(listed)))
        return StudyPrompt(
            group=f"{self.length} words",
            prompt=_asked(f"Read the following coded text.\n{text}\n", self.asked),
            answer={"right": made[: self.asked], "wrong": made[self.asked :]},
            verifier="choice",
            facts={"words": len(listed), "asked": self.asked, "power": self.power},
        )

    def _counts(self) -> list[int]:
        """How often each word stands there, most frequent first."""
        shares = [rank**-self.power for rank in range(1, self.kinds + 1)]
        return [max(1, round(self.length * share / sum(shares))) for share in shares]


def _made_up(random: Generator, count: int) -> list[str]:
    """Different words of three syllables."""
    found = list[str]()
    while len(found) < count:
        letters = zip(random.integers(len(CONSONANTS), size=3), random.integers(len(VOWELS), size=3), strict=True)
        drawn = "".join(CONSONANTS[c] + VOWELS[v] for c, v in letters)
        found += [drawn] if drawn not in found else []
    return found


def _asked(text: str, count: int) -> str:
    if count == 1:
        return f"{text}Which word appears most often above? Answer with that word alone."
    return f"{text}Which {count} words appear most often above? Answer with these words alone."
