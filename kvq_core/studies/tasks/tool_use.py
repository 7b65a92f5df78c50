"""Tools: a request that one of several tools answers, with its arguments in the request."""

from typing import Any, ClassVar, Self

from numpy.random import Generator
from pydantic import Field, model_validator

from kvq_core.errors import SpecError
from kvq_core.spec import Message, Tool
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks.sample import Suite
from kvq_core.studies.tasks.words import words

Kind = str | tuple[int, int]  # of an argument: a list of words, or numbers from the first to below the second

# name: what it does, its arguments, and a request for it
TOOLS: dict[str, tuple[str, dict[str, Kind], str]] = {
    "get_weather": ("Tell the weather in a city.", {"city": "cities"}, "What is the weather in {city}?"),
    "set_timer": ("Start a timer.", {"minutes": (2, 60)}, "Set a timer for {minutes} minutes."),
    "send_message": (
        "Send a message to a person.",
        {"recipient": "names", "text": "nouns"},
        'Send {recipient} a message with the text "{text}".',
    ),
    "book_table": (
        "Book a table in a restaurant.",
        {"city": "cities", "people": (2, 12)},
        "Book a table for {people} people in {city}.",
    ),
    "set_light": ("Set the color of the light.", {"color": "colors"}, "Make the light {color}."),
    "add_item": (
        "Put an item on the shopping list.",
        {"item": "nouns", "count": (2, 20)},
        'Put {count} of the item "{item}" on my shopping list.',
    ),
}


class ToolUse(Suite):
    """Requests that each need one call; all of them in one message where several calls are asked for."""

    title: ClassVar = "Tools"
    asks: ClassVar = "The right calls of the right tools, with the arguments that the request names."
    source: ClassVar = "made for this project; judged by structure as BFCL does"
    new_tokens: ClassVar = 64

    tools: int = Field(3, ge=1, le=len(TOOLS), description="Tools that are offered.")
    calls: int = Field(1, ge=1, le=len(TOOLS), description="Calls that the request needs; not more than tools.")

    @model_validator(mode="after")
    def _enough_tools(self) -> Self:
        if self.calls > self.tools:
            raise SpecError(f"suite tools: calls = {self.calls} is not allowed; give at most tools, {self.tools}.")
        return self

    def sample(self, number: int, random: Generator) -> StudyPrompt:
        offered = [list(TOOLS)[i] for i in random.permutation(len(TOOLS))[: self.tools]]
        asked = [offered[i] for i in random.permutation(self.tools)[: self.calls]]
        arguments = [_drawn(random, TOOLS[name][1]) for name in asked]
        request = " ".join(TOOLS[name][2].format(**given) for name, given in zip(asked, arguments, strict=True))
        return StudyPrompt(
            group=f"{self.tools} tools",
            messages=(Message(role="user", content=request),),
            tools=tuple(_tool(name) for name in offered),
            answer=[{"name": name, "arguments": given} for name, given in zip(asked, arguments, strict=True)],
            verifier="tool_calls",
            facts={"tools": self.tools, "calls": self.calls},
        )


def _drawn(random: Generator, kinds: dict[str, Kind]) -> dict[str, Any]:
    """Arguments of a call."""
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        if isinstance(kind, str):
            held = words(kind)
            found[name] = held[random.integers(len(held))]
        else:
            found[name] = int(random.integers(*kind))
    return found


def _tool(name: str) -> Tool:
    """A tool as chat APIs describe it."""
    description, kinds, _ = TOOLS[name]
    types = {key: {"type": "string" if isinstance(kind, str) else "integer"} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": types, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
