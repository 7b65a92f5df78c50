"""A conversation in place of one prompt: messages, and the tools that they may call."""

from typing import Any, Literal

from pydantic import Field, field_validator

from kvq_core.errors import SpecError, excerpt
from kvq_core.spec.part import SpecPart

Tool = dict[str, Any]


class Message(SpecPart):
    """One message, with the names that chat templates and the usual chat APIs know."""

    role: Literal["system", "user", "assistant", "tool"] = Field(description="Who says it.")
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
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not name:
        raise SpecError(f'{excerpt(tool)} has no name; give {{"type": "function", "function": {{"name": ...}}}}.')
    return name


def check_conversation(messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> None:
    """Raises SpecError, in one line, for a conversation that no model can be asked to answer."""
    roles = [message.role for message in messages]
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
    if roles[-1] not in ("user", "tool"):
        raise SpecError(
            f"the last message is from the {roles[-1]}, and there is nothing to answer; end with one of the user or a "
            "tool."
        )
    known = [tool_name(tool) for tool in tools]
    if twice := [name for at, name in enumerate(known) if name in known[:at]]:
        raise SpecError(f"tools have {excerpt(twice[0])} twice; give each tool once.")
    for number, message in enumerate(messages, 1):
        if message.role != "assistant" and message.tool_calls:
            raise SpecError(f"message {number} is from the {message.role} and calls tools; only the assistant can.")
        if not message.content.strip() and not message.tool_calls:
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
