"""JSON from a sentence: fields with names and types that are given, of a person that a text tells about."""

import json
from typing import ClassVar

from numpy.random import Generator
from pydantic import Field

from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import InText, Lengths
from kvq_core.studies.tasks.words import filler, hidden, words

Person = dict[str, str | int]


class Extraction(InText):
    """A person's facts, told in a sentence among others, as one JSON object."""

    title: ClassVar = "JSON extraction"
    asks: ClassVar = "A person's facts in a text, as one JSON object."
    source: ClassVar = "made for this project"
    new_tokens: ClassVar = 64

    lengths: Lengths = Field((20,), description="Words of the text, 20 to 100,000; prompts take these in turn.")
    fields: int = Field(3, ge=2, le=5, description="Fields of the object, of name, age, city, job and color.")

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        length = self.lengths[number % len(self.lengths)]
        shown, asked = self._person(random), self._person(random)
        text = hidden(filler(random, length), [(float(random.random()), _told(asked))])
        keys = ", ".join(asked)
        return StudyPrompt(
            group=f"{length} words",
            prompt=f"Write what the text says of the person as a JSON object with the keys {keys}.\n\n"
            f"Text: {_told(shown)}\nJSON: {json.dumps(shown)}\n\nText: {text}\nJSON:",
            answer=dict(asked),
            verifier="json",
            facts={"words": length, "fields": self.fields},
        )

    def _person(self, random: Generator) -> Person:
        def one(kind: str) -> str:
            held = words(kind)
            return held[random.integers(len(held))]

        whole: Person = {"name": one("names"), "age": int(random.integers(18, 90)), "city": one("cities")}
        whole |= {"job": one("jobs"), "color": one("colors")}
        return dict(list(whole.items())[: self.fields])


_TOLD = {
    "name": "{name}",
    "age": "is {age} years old",
    "city": "lives in {city}",
    "job": "works as a {job}",
    "color": "has a {color} coat",
}


def _told(person: Person) -> str:
    name, *rest = (_TOLD[key].format(**person) for key in person)
    said = f"{', '.join(rest[:-1])} and {rest[-1]}" if len(rest) > 1 else rest[0]
    return f"{name} {said}."
