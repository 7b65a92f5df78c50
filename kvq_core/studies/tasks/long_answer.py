"""Long answers: error in a cache accumulates over a thousand tokens and more, where short tasks cannot see it."""

from typing import ClassVar

from numpy.random import Generator
from pydantic import Field

from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import Suite
from kvq_core.studies.tasks.words import words


class Long(Suite):
    """A subject to write about at length. There is no right answer: what tells is the slope of KLD over the steps."""

    title: ClassVar = "Long answers"
    asks: ClassVar = "A long text about a subject; no right answer, the slope of KLD over its steps tells."
    source: ClassVar = "made for this project"
    new_tokens: ClassVar = 1024

    length: int = Field(1200, ge=100, le=20_000, description="Words that are asked for.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        topics, readers = words("topics"), words("readers")
        topic, reader = topics[number % len(topics)], readers[random.integers(len(readers))]
        return StudyPrompt(
            group=f"{self.length} words",
            prompt=f"Write a detailed essay of at least {self.length} words about {topic}, for {reader}. Take one "
            "aspect after the other, and do not sum up before you have written about all of them.",
            facts={"asked_words": self.length, "topic": topic},
        )
