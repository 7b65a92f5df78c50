"""A conversation in place of one prompt: messages, and the tools that they may call."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from kvq_core.errors import SpecError, excerpt
from kvq_core.spec.chats import SCORED, Passed, function_of, read_message, read_row
from kvq_core.spec.part import SpecPart

Tool = dict[str, Any]
Last = Annotated[
    Literal["answer", "context"] | None,
    Field(
        description="What a last message of the assistant is: the answer to score in place of a generated one, or "
        "context, after which the model answers once more."
    ),
]


class Message(SpecPart):
    """One message, with the names that chat templates and the usual chat APIs know."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="Who says it; a template that knows no developer is given the system."
    )
    content: str = Field("", max_length=2_000_000, description="Its text.")
    tool_calls: tuple[dict[str, Any], ...] = Field((), description="Tools an assistant calls, as chat APIs write it.")
    tool_call_id: str | None = Field(None, max_length=200, description="The call that a tool's message answers.")
    name: str | None = Field(None, max_length=200, description="The tool's name.")

    @field_validator("content", mode="before")
    @classmethod
    def _null_is_empty(cls, content: Any) -> Any:
        return "" if content is None else content

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _null_is_none(cls, calls: Any) -> Any:
        return () if calls is None else calls


def tool_name(tool: Tool) -> str:
    """Of a tool or of a call, ``{"function": {"name": ...}}`` or ``{"name": ...}``. Raises SpecError for neither."""
    name = function_of(tool).get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(f'{excerpt(tool)} has no name; give {{"type": "function", "function": {{"name": ...}}}}.')
    return name


class Chat(SpecPart):
    """What may hold a conversation as people have it: a whole logged call where it is a ``row``."""

    row: ClassVar[bool] = False
    _passed: Passed = PrivateAttr(default_factory=Passed)

    @property
    def passed(self) -> Passed:
        """What of it was passed over, by name."""
        return self._passed

    @model_validator(mode="wrap")
    @classmethod
    def _as_people_have_it(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        passed = Passed()
        if isinstance(data, dict):
            data = read_row(data, passed) if cls.row else data
            if isinstance(given := data.get("messages"), list | tuple):
                pairs = enumerate(given, 1)
                messages = [read_message(m, at, passed) if isinstance(m, dict) else m for at, m in pairs]
                data = {**data, "messages": messages}
            data = _with_last(data, passed)
        made = handler(data)
        if passed:
            made._passed = passed
        return made


def _with_last(data: dict[str, Any], passed: Passed) -> dict[str, Any]:
    """A last answer as the continuation, where it is one; ``last`` stays where it says something else."""
    rest = {name: value for name, value in data.items() if name != "last"}
    given = data.get("messages")
    *before, end = given if isinstance(given, list | tuple) and given else [None]
    told = end.model_dump() if isinstance(end, Message) else end
    if not isinstance(told, dict) or told.get("role") != "assistant":
        return rest if data.get("last") in ("answer", "context") else data
    if data.get("last") != "answer":
        return data
    if told.get("tool_calls") or rest.get("continuation") is not None:
        why = "it calls tools, which are no text" if told.get("tool_calls") else "continuation is given as well"
        raise SpecError(f'last = "answer" cannot score the last message: {why}; give last = "context".')
    passed[SCORED] += 1
    return {**rest, "messages": before, "continuation": told.get("content") or ""}


def check_conversation(messages: tuple[Message, ...], tools: tuple[Tool, ...], last: str | None = None) -> None:
    """Raises SpecError, in one line, for a conversation that no model can be asked to answer."""
    roles = ["system" if message.role == "developer" else message.role for message in messages]
    if "user" not in roles:
        raise SpecError("messages have none from the user; add one.")
    if "system" in roles[1:]:
        raise SpecError(
            f"message {len(roles) - roles[::-1].index('system')} is from the system; there is at most one such "
            "message, and it is the first."
        )
    if roles[0] == "assistant":
        raise SpecError(
            "message 1 is from the assistant, and nothing was said before it; begin with one of the system or the user."
        )
    if roles[-1] not in ("user", "tool") and not (roles[-1] == "assistant" and last == "context"):
        either = 'give last = "answer" to score it, last = "context" to answer once more, or '
        raise SpecError(
            f"the last message is from the {roles[-1]}, and there is nothing to answer; "
            f"{either * (roles[-1] == 'assistant')}end with one of the user or a tool."
        )
    known = [tool_name(tool) for tool in tools]
    if twice := [name for at, name in enumerate(known) if name in known[:at]]:
        raise SpecError(f"tools have {excerpt(twice[0])} twice; give each tool once.")
    for number, message in enumerate(messages, 1):
        if message.role != "assistant" and message.tool_calls:
            raise SpecError(f"message {number} is from the {message.role} and calls tools; only the assistant can.")
        if not message.content.strip() and message.role not in ("assistant", "tool"):
            raise SpecError(f"message {number}, from the {message.role}, is empty; write something or remove it.")
        for call in message.tool_calls:
            if (name := tool_name(call)) not in known:
                there = ", ".join(known) or "none"
                raise SpecError(f"message {number} calls the tool {excerpt(name)}, which is not among tools ({there}).")
    _check_answers(messages)


def _check_answers(messages: tuple[Message, ...]) -> None:
    """Tools' messages follow those that call them, and name one of these calls where they name one."""
    calls: tuple[dict[str, Any], ...] = ()
    for number, message in enumerate(messages, 1):
        if message.role != "tool":
            calls = message.tool_calls
            continue
        if not calls:
            raise SpecError(f"message {number} is a tool's answer, and no tool was called before it.")
        asked = [call["id"] for call in calls if isinstance(call.get("id"), str)]
        if message.tool_call_id and asked and message.tool_call_id not in asked:
            raise SpecError(
                f"message {number} answers the call {excerpt(message.tool_call_id)}; before it are {', '.join(asked)}."
            )
