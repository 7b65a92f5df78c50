"""What every suite is: options as fields, and a rule that makes one prompt from a source of random numbers."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

from numpy.random import Generator
from pydantic import Field

from kvq_core.spec.part import SpecPart
from kvq_core.studies.prompts import StudyPrompt

MOST_WORDS = 100_000

Lengths = Annotated[tuple[Annotated[int, Field(ge=20, le=MOST_WORDS)], ...], Field(min_length=1, max_length=64)]
Depths = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=64)]


class Suite(SpecPart, ABC):
    """A kind of task; its fields are its options.

    ``new_tokens`` are enough for a right answer of either model that tests know, with the options' defaults. ``source``
    is where the task comes from.
    """

    title: ClassVar[str]
    asks: ClassVar[str]
    source: ClassVar[str]
    new_tokens: ClassVar[int]

    def words(self, number: int) -> int:
        """About how many words the prompt of a number has, at least; known before it is made."""
        return 8

    @abstractmethod
    def sample(self, number: int, random: Generator) -> StudyPrompt:
        """The prompt of that number, from 0; all that is random in it is drawn from ``random``."""


class InText(Suite):
    """A task in a filler text of chosen lengths. They are counted in words, so that prompts are the same for every
    model and need none to be made; docs/tasks.md says how many tokens a word has."""

    lengths: Lengths = Field((120,), description="Words of the text, 20 to 100,000; prompts take these in turn.")

    def words(self, number: int) -> int:
        return self.lengths[number % len(self.lengths)]


class AtDepth(InText):
    """A task whose place in the text is chosen: prompts take lengths and depths in turn, all depths of the first length
    before the next, so that a multiple of their product fills a map of depth against length evenly."""

    depths: Depths = Field(
        (0.0, 0.25, 0.5, 0.75, 1.0),
        description="Where in the text it is hidden, 0 the beginning and 1 the end; prompts take these in turn.",
    )

    def cell(self, number: int) -> tuple[int, float]:
        """Length and depth of a prompt."""
        length, depth = divmod(number, len(self.depths))
        return self.lengths[length % len(self.lengths)], self.depths[depth]

    def words(self, number: int) -> int:
        return self.cell(number)[0]
