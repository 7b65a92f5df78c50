"""Conversations of several turns through a chat template, taken apart into what is read and what was answered."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvq_core.errors import SpecError, excerpt
from kvq_core.models.template import check_size, run_template
from kvq_core.spec import Message, Tool, tool_name
from kvq_core.spec.chats import as_object, function_of

MARK = "kvq7text9mark"  # stands in no conversation
SHOWN = 40  # characters of a text from its first difference on


@dataclass(frozen=True)
class ChatTurn:
    """Text that enters the cache together; ``answered``: the assistant's, which came token by token."""

    text: str
    answered: bool


def turn_ids(
    tokenizer: Any, model: str, eos: Collection[int], messages: Sequence[Message], tools: Sequence[Tool]
) -> list[tuple[list[int], bool]]:
    """Token ids of the turns, each with whether the assistant answered them; an answer ends with its end-of-sequence
    token, and what the template puts after that is read with the next turn. Raises SpecError as ``turns`` does."""
    if not getattr(tokenizer, "chat_template", None):
        raise SpecError(f"{model} has no chat template; give prompt and chat = false instead of messages.")
    found: list[tuple[list[int], bool]] = []
    after: list[int] = []
    told = run_template(lambda: turns(tokenizer, model, messages, tools), model, len(messages))
    for turn in told:
        ids, after = after + list(tokenizer(turn.text, add_special_tokens=False)["input_ids"]), []
        if turn.answered:
            end = next((i + 1 for i, id in enumerate(ids) if id in eos), len(ids))
            ids, after = ids[:end], ids[end:]
        found.append((ids, turn.answered))
    return found


def turns(tokenizer: Any, model: str, messages: Sequence[Message], tools: Sequence[Tool]) -> list[ChatTurn]:
    """The conversation as the model's chat template puts it, ready to be answered, in turns that follow one another.

    Raises SpecError where the template refuses it, leaves out a text, a call or a tool, or writes earlier turns in
    another way once later ones follow: then no cache could go on from what it holds.
    """
    knows = "developer" in str(getattr(tokenizer, "chat_template", ""))
    told = [_told(message, knows) for message in messages]

    def put(told: list[dict[str, Any]], ask: bool, tools: Sequence[Tool] = tools) -> str:
        try:
            given = list(tools) or None
            return str(tokenizer.apply_chat_template(told, tools=given, add_generation_prompt=ask, tokenize=False))
        except MemoryError:
            raise
        except Exception as error:  # a template is a program of the model's, and may fail in any way
            said = " ".join(str(error).split())[:200].rstrip(" .") or type(error).__name__
            raise SpecError(f"The chat template of {model} refuses this conversation: {said}.") from None

    whole = put(told, True)
    check_size([whole], model)
    _check_texts(whole, model, messages, told, put)
    _check_tools(whole, model, told, tools, put)
    found, at = [], 0
    for n, message in enumerate(messages):
        if message.role == "assistant":
            for end, answered in ((put(told[:n], True), False), (put(told[: n + 1], False), True)):
                _check_goes_on(whole, end, model, n + 1)
                found.append(ChatTurn(whole[at : len(end)], answered))
                at = len(end)
    return [*found, ChatTurn(whole[at:], False)]


def _told(message: Message, developer: bool) -> dict[str, Any]:
    """A message as templates want it; without the role ``developer`` where they do not know it, as llama.cpp does
    (common/chat.cpp, map_developer_role_to_system)."""
    told = {"content": "", **message.model_dump(mode="json", exclude_defaults=True)}
    for call in told.get("tool_calls", ()):
        inner = function_of(call)
        if "arguments" in inner:
            inner["arguments"] = as_object(inner["arguments"])
    return told if developer or message.role != "developer" else {**told, "role": "system"}


def _check_goes_on(whole: str, start: str, model: str, number: int) -> None:
    if whole.startswith(start):
        return
    at = next((i for i, (a, b) in enumerate(zip(whole, start, strict=False)) if a != b), min(len(whole), len(start)))
    raise SpecError(
        f"The chat template of {model} writes message {number} in another way once others follow: "
        f"{excerpt(start[at : at + SHOWN])} becomes {excerpt(whole[at : at + SHOWN])}. A cache cannot go on from what "
        "it holds; give a conversation of one turn, or another model."
    )


def _check_texts(
    whole: str, model: str, messages: Sequence[Message], told: list[dict[str, Any]], put: Callable[..., str]
) -> None:
    """Templates leave out what they do not know, without a word. A text may stand in another message as well, so each
    is replaced by one that stands nowhere; and what somebody else says must not read as the user's."""
    marked = [{**each, "content": each["content"] and f"{MARK}{at}x"} for at, each in enumerate(told)]
    every = ""
    with suppress(SpecError):  # of one that takes no such text, each message is asked by itself
        every = put(marked, True)
    for number, (message, mark) in enumerate(zip(messages, marked, strict=True), 1):
        before, after = told[: number - 1], told[number:]
        if message.content.strip() not in whole or (
            mark["content"] not in every and mark["content"] not in put([*before, mark, *after], True)
        ):
            raise SpecError(f"The chat template of {model} leaves out or changes the text of message {number}.")
        if message.role in ("system", "developer", "tool") and message.content:
            with suppress(SpecError):  # one that refuses two users in a row knows the role
                if put([*before, {"role": "user", "content": message.content}, *after], True) == whole:
                    break
    else:
        return
    raise SpecError(f"The chat template of {model} writes message {number} ({message.role}) as the user's.")


def _check_tools(
    whole: str, model: str, told: list[dict[str, Any]], tools: Sequence[Tool], put: Callable[..., str]
) -> None:
    """A name that is there as often without the call, or the tools, stands for something else."""
    for number, message in enumerate(told, 1):
        calls = message.get("tool_calls", ())
        if not calls:
            continue
        silent = {name: value for name, value in message.items() if name != "tool_calls"}
        without = put([*told[: number - 1], silent, *told[number:]], True)
        if any(whole.count(tool_name(call)) <= without.count(tool_name(call)) for call in calls):
            raise SpecError(f"The chat template of {model} leaves out the tool call of message {number}.")
    without = put(told, True, ()) if tools else ""
    if dropped := [name for name in map(tool_name, tools) if whole.count(name) <= without.count(name)]:
        raise SpecError(f"The chat template of {model} leaves out the tool {excerpt(dropped[0])}: it knows no tools.")
