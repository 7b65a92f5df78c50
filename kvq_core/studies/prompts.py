"""One prompt of a study: what is asked and, where a task is judged, the right answer and who judges it."""

from typing import ClassVar, Self

from pydantic import Field, JsonValue, model_validator

from kvq_core.errors import SpecError
from kvq_core.spec import Message, Tool
from kvq_core.spec.conversation import Chat, Last, check_conversation


class StudyPrompt(Chat):
    """A row of a file of prompts, or a sample of a suite. Fields are named as in a comparison."""

    row: ClassVar[bool] = True

    id: str = Field(
        "", max_length=200, coerce_numbers_to_str=True, description="Its name in tables; empty: its number."
    )
    group: str = Field("", max_length=200, description="Prompts of one group are also summed up together.")
    prompt: str = Field("", max_length=2_000_000, description="The user's prompt; empty where messages are given.")
    messages: tuple[Message, ...] | None = Field(None, max_length=1024, description="A conversation, in its place.")
    system: str | None = Field(None, max_length=100_000, description="System message of a prompt.")
    tools: tuple[Tool, ...] = Field((), max_length=128, description="Tools that the prompt or the messages may call.")
    last: Last = None
    continuation: str | None = Field(None, max_length=2_000_000, description="Text to score instead of generating.")
    answer: JsonValue = Field(None, description="What a right answer is; what it looks like, the verifier says.")
    verifier: str | None = Field(None, max_length=100, description="Who judges the free text: the name of a verifier.")
    facts: dict[str, JsonValue] = Field({}, description="What its suite knows of it: length, depth, difficulty.")

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not self.prompt.strip() and not self.messages:
            raise SpecError("neither prompt nor messages are given; give one of them.")
        if self.messages is not None:
            if self.prompt or self.system:
                raise SpecError("messages stand in place of prompt and system; put the text into a message.")
            check_conversation(self.messages, self.tools, self.last)
        elif self.tools:
            check_conversation((Message(role="user", content=self.prompt),), self.tools)
        if self.continuation is not None and not self.continuation.strip():
            raise SpecError("continuation is blank; leave it out, or give text to score.")
        if (self.answer is None) != (self.verifier is None):
            raise SpecError("answer and verifier go together; give both, or neither.")
        return self
