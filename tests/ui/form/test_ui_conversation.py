"""The box of a conversation: JSON there and back, and what is no conversation refused in one line."""

import json

import pytest

from kvq_core.errors import SpecError
from kvq_core.spec import Message, parse_spec
from kvq_core.spec.chats import passed_line
from ui.form.draft import draft_json, read_draft
from ui.form.values import FIELDS, from_comparison, to_comparison

TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Who keeps the tables?"},
    {"role": "assistant", "content": "The harbour master."},
    {"role": "user", "content": "And the gauge?"},
]
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "tide", "arguments": {"port": "Ostend"}}}]}
TOOLS = [{"type": "function", "function": {"name": "tide"}}]


@pytest.mark.parametrize(
    "given",
    [
        {"messages": TALK, "score_turns": "all"},
        {"messages": [TALK[1], CALL, {"role": "tool", "content": "3 m"}], "tools": TOOLS},
    ],
    ids=["turns", "tools"],
)
def test_a_conversation_survives_the_form_and_its_draft(given):
    spec = parse_spec({**given, "lanes": [{"method": "kivi", "prefill": "256"}]})
    values, lanes, rest = from_comparison(spec)
    told = dict(zip(FIELDS, values, strict=True))
    assert told["prompt"] == "" and json.loads(told["conversation"])
    assert to_comparison(told, lanes, rest) == spec
    kept = {"version": 1, "values": told, **json.loads(draft_json(lanes, rest))}
    assert read_draft(json.dumps(kept)) == (values, lanes, rest)


def test_pasted_messages_replace_the_prompt():
    values, lanes, rest = from_comparison(parse_spec({"prompt": "Hello"}))
    told = dict(zip(FIELDS, values, strict=True))
    assert told["conversation"] == ""
    pasted = {**told, "prompt": "", "conversation": json.dumps(TALK)}
    spec = to_comparison(pasted, lanes, rest)
    assert spec.question == "And the gauge?" and len(spec.messages or ()) == 4


@pytest.mark.parametrize(
    ("logged", "passed"),
    [
        ({"messages": TALK, "model": "gpt-4o", "temperature": 0.2}, "Passed over: model (1), temperature (1)."),
        ({"body": {"messages": [{**each, "refusal": None} for each in TALK]}}, "Passed over: refusal (4)."),
        ({"messages": TALK[:3], "last": "answer"}, "Last answers of the assistant that are the text to score: 1."),
    ],
)
def test_a_logged_call_is_its_messages_and_says_what_was_passed_over(logged, passed):
    values, lanes, rest = from_comparison(parse_spec({"prompt": "Hello"}))
    told = {**dict(zip(FIELDS, values, strict=True)), "prompt": "", "conversation": json.dumps(logged)}
    spec = to_comparison(told, lanes, rest)
    assert spec.messages[:2] == tuple(map(Message.model_validate, TALK[:2])) and passed_line(spec.passed) == passed
    assert (spec.continuation == TALK[2]["content"]) == ("last" in logged)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not valid JSON"),
        ("3", "no list of messages"),
        ('{"tools": []}', "no list of messages"),
        ('{"messages": [], "prompt": "x"}', "no list of messages"),
        ("[]", "none from the user"),
        ('[{"role": "user"}]', "is empty"),
        (json.dumps(TALK), "messages and prompt are both given"),
    ],
)
def test_what_is_no_conversation_is_refused_in_one_line(text, said):
    values, lanes, rest = from_comparison(parse_spec({"prompt": "Hello"}))
    prompt = "Hello" if "prompt are" in said else ""
    told = {**dict(zip(FIELDS, values, strict=True)), "conversation": text, "prompt": prompt}
    with pytest.raises(SpecError, match=said) as raised:
        to_comparison(told, lanes, rest)
    assert "\n" not in str(raised.value)
