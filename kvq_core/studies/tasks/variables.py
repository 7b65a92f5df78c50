"""Variable tracking: which variables hold a value that was passed from one to the next (RULER, arXiv:2404.06654,
section 3)."""

import re
from typing import ClassVar

from numpy.random import Generator
from pydantic import Field

from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import InText, Lengths
from kvq_core.studies.tasks.words import filler, hidden

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


class VariableTracking(InText):
    """Chains of assignments spread over a text in their order; all variables of one chain are asked for."""

    title: ClassVar = "Variable tracking"
    asks: ClassVar = "All variables that end up with one value, over assignments spread over a text."
    source: ClassVar = "RULER, arXiv:2404.06654"
    new_tokens: ClassVar = 48

    lengths: Lengths = Field((60,), description="Words of the text, 20 to 100,000; prompts take these in turn.")
    hops: int = Field(2, ge=1, le=16, description="Assignments of a chain after its first.")
    chains: int = Field(1, ge=1, le=8, description="Chains, of which one is asked for.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        length = self.lengths[number % len(self.lengths)]
        text, value, names = self._text(random, length)
        example, known, chain = self._text(random, 0)
        return StudyPrompt(
            group=f"{length} words",
            prompt=f"{_put(example, known)} {_said(chain)}\n\n{_put(text, value)}",
            answer=names,
            verifier="all_of",
            facts={"words": length, "hops": self.hops, "chains": self.chains},
        )

    def _text(self, random: Generator, length: int) -> tuple[str, str, list[str]]:
        """A text, the value asked for and the variables that hold it."""
        named = _names(random, self.chains * (self.hops + 1))
        values = [str(10_000 + i) for i in random.choice(90_000, self.chains, replace=False)]
        chains = [named[i :: self.chains] for i in range(self.chains)]
        placed = list[tuple[float, str]]()
        for chain, value in zip(chains, values, strict=True):
            told = [value, *(f"VAR {name}" for name in chain[:-1])]
            depths = sorted(random.random(len(chain)).tolist())
            placed += [(d, f"VAR {n} = {v}.") for d, n, v in zip(depths, chain, told, strict=True)]
        return hidden(filler(random, length), sorted(placed)), values[0], chains[0]


def _names(random: Generator, count: int) -> list[str]:
    """Different names of three letters, none of them a word that is said anyway: whoever repeats the question would
    have named the variable AND."""
    said = set(re.findall(r"\b[A-Z]{3}\b", f"{_put('VAR', '')} {_said([])}".upper()))
    found = list[str]()
    while len(found) < count:
        drawn = "".join(LETTERS[i] for i in random.integers(len(LETTERS), size=3))
        found += [drawn] if drawn not in found and drawn not in said else []
    return found


def _put(text: str, value: str) -> str:
    return (
        f"Memorize and track the chains of variable assignment in the text.\n{text}\nQuestion: Find all variables "
        f"that are assigned the value {value}.\nAnswer:"
    )


def _said(names: list[str]) -> str:
    return f"The variables are {', '.join(names)}."
