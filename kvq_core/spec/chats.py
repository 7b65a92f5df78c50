"""Chats as people have them, logged calls, training files and samples of other tools, in this project's own fields."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvq_core.errors import SpecError, excerpt

Passed = Counter[str]  # how often what was passed over, by name
CHATS = ("messages", "conversations", "conversation")  # columns that hold a chat; ShareGPT's are the later two
# What logs of calls hold beside the chat: OpenAI's API and its batches, vLLM, llama.cpp, Ollama (api/types.go).
_OF_CALLS = """model temperature top_p top_k min_p typical_p max_tokens max_completion_tokens max_new_tokens n stream
    stop stream_options seed presence_penalty frequency_penalty repetition_penalty repeat_penalty logit_bias logprobs
    user top_logprobs metadata store response_format tool_choice parallel_tool_calls reasoning_effort service_tier
    modalities prediction extra_body chat_template_kwargs method url usage created object system_fingerprint choices
    response options format keep_alive think raw template created_at done done_reason total_duration load_duration
    prompt_eval_count prompt_eval_duration eval_count eval_duration error message images""".split()
_OF_MESSAGES = """refusal annotations audio reasoning reasoning_content reasoning_details thinking function_call weight
    train id timestamp created_at model finish_reason logprobs prefix cache_control status type citations
    images""".split()
_ROLES = {
    **dict.fromkeys(("human", "Human", "User"), "user"),
    **dict.fromkeys(("gpt", "GPT", "chatgpt", "bot", "bing", "bard", "Assistant", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response"), "tool"),
    "System": "system",
}
_TEXTS, _THOUGHTS = ("text", "input_text", "output_text"), ("thinking", "redacted_thinking", "reasoning")
AS_TEXT = "Arguments of calls that are no JSON object and stay text"
SCORED = "Last answers of the assistant that are the text to score"


def as_object(arguments: Any) -> Any:
    """A call's arguments as templates want them: chat APIs write the object as a JSON string, which servers read before
    the template sees it (vLLM's chat_utils.py); text that is no object stays as it is."""
    found = (_json(arguments) if arguments.strip() else {}) if isinstance(arguments, str) else arguments
    return found if isinstance(found, dict) else arguments


def function_of(call: dict[str, Any]) -> dict[str, Any]:
    """The part of a call, or of a tool, that has the name."""
    inner = call.get("function", call)
    return inner if isinstance(inner, dict) else {}


def passed_line(passed: Passed) -> str | None:
    """What was passed over, and what was read in another way than it stands there, in a line."""
    names = ", ".join(f"{name} ({count})" for name, count in sorted(passed.items()) if name not in (AS_TEXT, SCORED))
    read = [f"{name}: {passed[name]}." for name in (AS_TEXT, SCORED) if passed[name]]
    return " ".join([f"Passed over: {names}."] * bool(names) + read) or None


def read_row(given: dict[str, Any], passed: Passed) -> dict[str, Any]:
    """A row of a file, or a logged call, as the fields of a prompt; those that are not known stay. Raises SpecError for
    what cannot be read as text."""
    row = dict(given)
    for name in ("body", "request"):  # of a batch, or a log: the call stands in it
        row |= row.pop(name) if isinstance(row.get(name), dict) else {}
    if "custom_id" in row:
        row = {"id": row.pop("custom_id"), **row}
    if isinstance(row.get("doc"), dict) and row.get("arguments"):
        row = _sample(row, passed)
    row |= {name: _json(row[name]) for name in (*CHATS, "tools") if isinstance(row.get(name), str)}  # JSON in tables
    for name in CHATS[1:]:
        if isinstance(row.get(name), list) and "messages" not in row:
            system = row.pop("system", None)
            row["messages"] = [{"role": "system", "content": system}] * bool(system) + row.pop(name)
    if isinstance(row.get("messages"), list):
        row["messages"] = [*row["messages"], *_responses(row)]
    if row.get("images"):
        raise SpecError("it has images, and text alone can be read; leave them out, or the whole row.")
    return _without(row, _OF_CALLS, passed)


def read_message(given: dict[str, Any], number: int, passed: Passed) -> dict[str, Any]:
    """A message in the names that templates know, its text in one piece. Raises as ``read_row`` does."""
    own = dict(given)
    for theirs, name in (("from", "role"), ("value", "content"), ("tool_name", "name")):
        if theirs in own and name not in own:
            own[name] = own.pop(theirs)
    call = own.get("function_call")  # OpenAI's before there were tools
    if own.get("role") == "function_call":  # LLaMA-Factory's
        call, own["content"] = _json(own.get("content")), ""
    if isinstance(call, dict) and not own.get("tool_calls"):
        own["tool_calls"] = [{"type": "function", "function": call}]
    if isinstance(role := own.get("role"), str):
        own["role"] = _ROLES.get(role, role)
    if isinstance(own.get("content"), list | tuple):
        own["content"] = "\n".join(_texts(own["content"], number, passed))  # as vLLM joins them, chat_utils.py
    if seen := [name for name in ("images", "audio") if own.get(name)]:
        raise SpecError(f"message {number} has {seen[0]}, and text alone can be read; leave out these, or the row.")
    calls = own.get("tool_calls")
    for each in calls if isinstance(calls, list | tuple) else ():
        if isinstance(each, dict) and isinstance(as_object(function_of(each).get("arguments")), str):
            passed[AS_TEXT] += 1
    return _without(own, _OF_MESSAGES, passed)


def _texts(parts: Iterable[Any], number: int, passed: Passed) -> Iterable[str]:
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind in _TEXTS and isinstance(text, str):
            yield text
        elif kind in _THOUGHTS:
            passed[kind] += 1
        else:
            known = ", ".join(_TEXTS)
            raise SpecError(
                f"message {number} has a part {excerpt(kind)} that is no text; leave it out; known: {known}."
            )


def _responses(row: dict[str, Any]) -> list[Any]:
    """What a logged call was answered, which stands behind its messages: OpenAI's choices, Ollama's message."""
    inner = row["response"] if isinstance(row.get("response"), dict) else row
    inner = inner["body"] if isinstance(inner.get("body"), dict) else inner
    first, *_ = inner["choices"] if isinstance(inner.get("choices"), list) and inner["choices"] else [inner]
    return [first["message"]] if isinstance(first, dict) and isinstance(first.get("message"), dict) else []


def _sample(row: dict[str, Any], passed: Passed) -> dict[str, Any]:
    """The prompt of a sample that lm-eval logged, and what it scored after it; of several choices the right one
    (loggers/evaluation_tracker.py: arguments are {"gen_args_0": {"arg_0": ...}}; lists in 2024)."""
    requests, target = row["arguments"], str(row.get("target"))
    every = [list(each.values()) if isinstance(each, dict) else each for each in _values(requests)]
    at = int(target) if len(every) > 1 and target.isdecimal() else len(every) - 1
    if not 0 <= at < len(every) or (at and not target.isdecimal()) or not isinstance(every[at], list) or not every[at]:
        raise SpecError(f"its arguments are {len(every)} requests, and target = {excerpt(target)} is none of them.")
    passed.update(name for name in row if name not in ("arguments", "last"))
    (prompt, *_), rest = every[at][0] if isinstance(every[at][0], list) else every[at][:1], every[at][1:]
    chat = _json(prompt) if isinstance(prompt, str) and prompt.startswith("[{") else None
    own = {"messages": chat} if isinstance(chat, list) else {"prompt": prompt}
    return {**own, "continuation": rest[0]} if rest and isinstance(rest[0], str) else own


def _values(requests: Any) -> list[Any]:
    return list(requests.values()) if isinstance(requests, dict) else requests if isinstance(requests, list) else []


def _json(text: Any) -> Any:
    """What a text says as JSON; the text itself where it is none."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _without(data: dict[str, Any], names: Iterable[str], passed: Passed) -> dict[str, Any]:
    passed.update(name for name in names if name in data)
    return {name: value for name, value in data.items() if name not in names}
