"""Needles: numbers hidden in a text and asked for, one or several of them (Hsieh et al., RULER, 2024, arXiv:2404.06654,
section 3 and appendix B: NIAH single, multi-key, multi-query, multi-value)."""

from typing import ClassVar

from numpy.random import Generator
from pydantic import Field

from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import AtDepth
from kvq_core.studies.tasks.words import draw_words, filler, hidden

SOURCE = "RULER, arXiv:2404.06654"


class Needle(AtDepth):
    """One number, and no other: the control, which anything that reads the text passes."""

    title: ClassVar = "Needle"
    asks: ClassVar = "One number hidden in a text."
    source: ClassVar = SOURCE
    new_tokens: ClassVar = 32

    digits: int = Field(5, ge=2, le=12, description="Digits of a number.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        return self._prompt(number, random, keys=1, asked=1, each=1)

    def _prompt(self, number: int, random: Generator, keys: int, asked: int, each: int) -> StudyPrompt:
        """``keys`` with ``each`` so many numbers, of which the first ``asked`` keys are asked for.

        The first needle lies at the depth chosen, the others anywhere.
        """
        length, depth = self.cell(number)
        named = draw_words(random, "nouns", keys)
        values = self._numbers(random, keys * each)
        told = [
            f"The special magic number for {key} is {value}."
            for key, value in zip([key for key in named for _ in range(each)], values, strict=True)
        ]
        depths = [depth, *random.random(len(told) - 1).tolist()]
        text = hidden(filler(random, length), list(zip(depths, told, strict=True)))
        return StudyPrompt(
            group=f"{length} words",
            prompt=_INTRODUCTION.format(text=text, question=_question(named[:asked], each)),
            answer=values[: asked * each],
            verifier="all_of",
            facts={"words": length, "depth": depth, "needles": len(told), "asked": asked * each},
        )

    def _numbers(self, random: Generator, count: int) -> list[str]:
        """Different numbers without a leading zero, none of them a part of another."""
        least, found = 10 ** (self.digits - 1), list[str]()
        while len(found) < count:
            drawn = str(random.integers(least, 10 * least))
            found += [drawn] if drawn not in found else []
        return found


class NeedleMultiKey(Needle):
    """One number among those of other keys."""

    title: ClassVar = "Needle, several keys"
    asks: ClassVar = "One number hidden in a text among the numbers of other keys."

    keys: int = Field(4, ge=2, le=64, description="Keys in the text, one of which is asked for.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        return self._prompt(number, random, keys=self.keys, asked=1, each=1)


class NeedleMultiQuery(Needle):
    """The numbers of several keys."""

    title: ClassVar = "Needle, several queries"
    asks: ClassVar = "The numbers of several keys, hidden apart in a text."
    new_tokens: ClassVar = 64

    queries: int = Field(2, ge=2, le=64, description="Keys in the text, all of which are asked for.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        return self._prompt(number, random, keys=self.queries, asked=self.queries, each=1)


class NeedleMultiValue(Needle):
    """All numbers of one key."""

    title: ClassVar = "Needle, several values"
    asks: ClassVar = "All numbers of one key, hidden apart in a text."
    new_tokens: ClassVar = 64

    values: int = Field(2, ge=2, le=64, description="Numbers of the key, all of which are asked for.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        return self._prompt(number, random, keys=1, asked=1, each=self.values)


_INTRODUCTION = (
    "Some special magic numbers are hidden within the following text. Memorize them; you will be asked for them "
    "afterwards.\n\n{text}\n\n{question}"
)


def _question(keys: list[str], each: int) -> str:
    of = " and for ".join([", for ".join(keys[:-1]), keys[-1]] if len(keys) > 1 else keys)
    if len(keys) * each == 1:
        return f"What is the special magic number for {of} mentioned in the text?"
    return f"What are all the special magic numbers for {of} mentioned in the text?"
