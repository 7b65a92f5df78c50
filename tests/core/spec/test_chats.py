"""Chats as people have them: logged calls, training files, samples of other tools."""

import json

import pandas as pd
import pytest

from kvq_core.errors import SpecError
from kvq_core.models.chat_turns import turns
from kvq_core.spec import Message, parse_spec
from kvq_core.spec.chats import AS_TEXT, SCORED, passed_line
from kvq_core.studies.cells import comparison_of
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.sources import PromptSource
from kvq_core.studies.spec import parse_study
from tests.support.study_models import LANES

USER = {"role": "user", "content": "Name a lake."}
ASSISTANT = {"role": "assistant", "content": "Como."}
MORE = {"role": "user", "content": "Another."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
PLAIN = [("user", "Name a lake."), ("assistant", "Como."), ("user", "Another.")]


def row(data: dict) -> StudyPrompt:
    return StudyPrompt.model_validate(data)


def said(prompt: StudyPrompt) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in prompt.messages or ()]


def call(arguments: object) -> dict:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": arguments}}]}


class Template:
    """A tokenizer with a template as Qwen's and many are: calls as JSON of their arguments."""

    def __init__(self, chat_template: str = ""):
        self.chat_template = chat_template

    def apply_chat_template(self, told, tools, add_generation_prompt, tokenize):
        lines = [f"{tool['function']['name']}!\n" for tool in tools or ()]
        for message in told:
            calls = [call["function"] for call in message.get("tool_calls", ())]
            written = [f"{each['name']} {json.dumps(each['arguments'])}" for each in calls]
            lines.append(f"<{message['role']}>{message['content']}{' '.join(written)}\n")
        return "".join(lines) + "<assistant>" * add_generation_prompt


def rendered(messages: tuple[Message, ...], template: str = "") -> str:
    tools = [TOOL] if any(message.tool_calls for message in messages) else []
    return "".join(turn.text for turn in turns(Template(template), "tiny", messages, tools))


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"city": "Rome", "unit": "C"}', '{"city": "Rome", "unit": "C"}'),
        ({"city": "Rome", "unit": "C"}, '{"city": "Rome", "unit": "C"}'),
        ("{}", "{}"),
        ("", "{}"),
        (' {"n": [1, {"m": null}]}\n', '{"n": [1, {"m": null}]}'),
        ("city=Rome", '"city=Rome"'),
        ("[1]", '"[1]"'),
        ('"{\\"a\\": 1}"', '"\\"{\\\\\\"a\\\\\\": 1}\\""'),
        ('{"city": ', '"{\\"city\\": "'),
    ],
)
def test_arguments_of_a_call_reach_the_template_as_the_object_they_are(arguments: object, written: str) -> None:
    asked = row({"messages": [USER, call(arguments), {"role": "tool", "content": "22"}], "tools": [TOOL]})
    assert f"look {written}\n" in rendered(asked.messages)
    assert asked.passed[AS_TEXT] == written.startswith('"')


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_arguments_are_read_alike_in_every_file(tmp_path, suffix: str) -> None:
    talk = [USER, call('{"city": "Rome"}'), {"role": "tool", "content": "22"}]
    file, held = tmp_path / f"p.{suffix}", {"messages": talk, "tools": [TOOL]}
    match suffix:
        case "jsonl":
            file.write_text(json.dumps(held))
        case "json":
            file.write_text(json.dumps([held], indent=1))
        case "csv":
            pd.DataFrame([{name: json.dumps(value) for name, value in held.items()}]).to_csv(file, index=False)
        case "parquet":
            pd.DataFrame([held]).to_parquet(file)
    [found], left = PromptSource(file=str(file)).read()
    assert 'look {"city": "Rome"}' in rendered(found.messages) and not left
    same = parse_spec({"messages": talk, "tools": [TOOL]})
    assert rendered(same.messages) == rendered(found.messages)
    assert same.canonical() == parse_spec({"messages": talk, "tools": [TOOL]}).canonical()
    assert '"arguments":"{' in same.canonical(), "what was asked before has the id that it had"


LOGGED = {"messages": [USER, ASSISTANT, MORE], "model": "gpt-4o", "temperature": 0.2, "max_tokens": 9, "stream": False}
WITH_EXTRAS = [USER, {**ASSISTANT, "refusal": None, "annotations": [], "reasoning_content": "A lake."}, MORE]
PARTS = [{"type": "text", "text": "Name a"}, {"type": "input_text", "text": "lake."}]
SHAREGPT = [("human", "Name a lake."), ("gpt", "Como."), ("human", "Another.")]
OLLAMA = {"model": "llama3.2", "options": {"num_ctx": 4096}, "keep_alive": "5m", "messages": LOGGED["messages"]}


@pytest.mark.parametrize(
    ("data", "passed"),
    [
        (LOGGED, {"model": 1, "temperature": 1, "max_tokens": 1, "stream": 1}),
        ({"custom_id": "a", "method": "POST", "url": "/v1", "body": LOGGED}, {"method": 1, "url": 1, "model": 1}),
        ({"request": LOGGED, "usage": {"total_tokens": 3}}, {"usage": 1, "model": 1}),
        ({"messages": WITH_EXTRAS}, {"refusal": 1, "annotations": 1, "reasoning_content": 1}),
        (OLLAMA, {"model": 1, "options": 1, "keep_alive": 1}),
        ({"conversations": [{"from": who, "value": what} for who, what in SHAREGPT], "id": "s"}, {}),
        ({"conversation": [USER, ASSISTANT, MORE]}, {}),
        ({"messages": json.dumps([USER, ASSISTANT, MORE])}, {}),
        ({"messages": [{**USER, "thinking": "Hm."}, ASSISTANT, {**MORE, "images": []}]}, {"thinking": 1, "images": 1}),
    ],
)
def test_a_chat_is_taken_out_of_what_people_have(data: dict, passed: dict[str, int]) -> None:
    found = row(data)
    assert said(found) == PLAIN
    assert passed.items() <= dict(found.passed).items()
    assert all(name in (passed_line(found.passed) or "") for name in passed)
    assert row({"id": found.id, "messages": [USER, ASSISTANT, MORE]}).model_dump() == found.model_dump()


def test_text_in_parts_is_joined_and_thoughts_are_passed_over() -> None:
    found = row({"messages": [{**USER, "content": [*PARTS, {"type": "thinking", "thinking": "Hm."}, "Now."]}]})
    assert said(found) == [("user", "Name a\nlake.\nNow.")] and found.passed == {"thinking": 1}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"messages": [{**USER, "content": [*PARTS, {"type": "image_url", "image_url": {}}]}]}, "part 'image_url'"),
        ({"messages": [{**USER, "content": [3]}]}, "message 1 has a part"),
        ({"messages": [{**USER, "images": ["aGk="]}]}, "message 1 has images, and text alone can be read"),
        ({"prompt": "What is this?", "images": ["aGk="]}, "it has images"),
        ({"messages": [USER], "modle": "x"}, "modle'; allowed: id, "),
        ({"messages": [{**USER, "mood": "good"}]}, r"messages\[0\].mood'; allowed: role, content"),
        ({"messages": [USER, ASSISTANT]}, 'give last = "answer" to score it, last = "context" to answer once more'),
        ({"messages": [USER, call("{}")], "tools": [TOOL], "last": "answer"}, "it calls tools, which are no text"),
        ({"messages": [USER, ASSISTANT], "last": "answer", "continuation": "x"}, "continuation is given as well"),
        ({"messages": [USER, ASSISTANT], "last": "both"}, "last = 'both' is not allowed"),
        ({"messages": [USER, {**USER, "content": " "}]}, "message 2, from the user, is empty"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data: dict, why: str) -> None:
    with pytest.raises(SpecError, match=why) as refused:
        parse_study({"prompts": {"rows": [data]}, "lanes": LANES})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("empty", [{"content": ""}, {"content": None}, {}])
def test_an_answer_and_a_tools_result_may_be_empty(empty: dict) -> None:
    found = row({"messages": [USER, {"role": "assistant", **empty}, MORE]})
    assert "<assistant>\n<user>" in rendered(found.messages)
    of_tool = row({"messages": [USER, call("{}"), {"role": "tool", **empty}], "tools": [TOOL]})
    assert "<tool>\n" in rendered(of_tool.messages)


def test_a_developer_is_the_system_where_a_template_knows_none() -> None:
    found = row({"messages": [{"role": "developer", "content": "Be brief."}, USER]})
    assert "<system>Be brief." in rendered(found.messages)
    assert "<developer>Be brief." in rendered(found.messages, "{% if message.role == 'developer' %}")
    with pytest.raises(SpecError, match="at most one such message"):
        row({"messages": [{"role": "system", "content": "x"}, {"role": "developer", "content": "y"}, USER]})


def test_a_last_answer_is_scored_or_context(tmp_path) -> None:
    file, rows = tmp_path / "p.jsonl", [{"messages": [USER, ASSISTANT]}, {"messages": [USER]}, {"prompt": "x"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SpecError, match="last = "):
        PromptSource(file=str(file)).read()
    (scored, asked, plain), _ = PromptSource(file=str(file), last="answer").read()
    assert said(scored) == [("user", "Name a lake.")] and scored.continuation == "Como." and scored.passed[SCORED] == 1
    assert (asked.continuation, asked.last, plain.last) == (None, None, None)
    (kept, *others), _ = PromptSource(file=str(file), last="context").read()
    assert said(kept) == PLAIN[:2] and [each.last for each in (kept, *others)] == ["context", None, None]
    shared = parse_spec({"prompt": "any"})
    whole = parse_spec(comparison_of(shared, kept).model_dump(mode="json", exclude_defaults=True))
    assert whole.last == "context" and rendered(whole.messages).endswith("<assistant>Como.\n<assistant>")
    same = parse_spec({"messages": [USER, ASSISTANT], "last": "answer"})
    assert same.canonical() == parse_spec({"messages": [USER], "continuation": "Como."}).canonical()
    listed = PromptSource.model_validate({"rows": rows[:1], "last": "answer"})
    assert listed.read()[0][0].continuation == "Como."


RESPONSES = [
    {"choices": [{"message": {**ASSISTANT, "refusal": None}}], "usage": {}},
    {"response": {"body": {"choices": [{"message": ASSISTANT}]}}},
    {"message": ASSISTANT, "done": True, "eval_count": 3},
]


@pytest.mark.parametrize("response", RESPONSES)
def test_what_a_logged_call_was_answered_stands_behind_its_messages(response: dict) -> None:
    found = row({"model": "m", "messages": [USER], **response, "last": "answer"})
    assert said(found) == [("user", "Name a lake.")] and found.continuation == "Como."


def test_older_calls_of_functions_are_calls_of_tools() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"a": 1}'}}
    found = row({"messages": [USER, old, {"role": "function", "name": "look", "content": "22"}], "tools": [TOOL]})
    assert 'look {"a": 1}' in rendered(found.messages) and found.messages[-1].role == "tool"
    trained = [
        {"from": "human", "value": "Look."},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "22"},
    ]
    found = row({"conversations": trained, "system": "Be brief.", "tools": json.dumps([TOOL])})
    assert 'look {"a": 1}' in rendered(found.messages) and found.messages[0].role == "system"


def sample(*requests: object, **more: object) -> dict:
    arguments = {f"gen_args_{at}": {f"arg_{n}": arg for n, arg in enumerate(args)} for at, args in enumerate(requests)}
    return {"doc_id": 0, "doc": {"question": "2+2?"}, "arguments": arguments, "resps": [["4"]], "acc": 1.0, **more}


@pytest.mark.parametrize(
    ("data", "prompt", "continuation"),
    [
        (sample(("Q: 2+2?\nA:", {"until": ["\n"]}), target="4"), "Q: 2+2?\nA:", None),
        (sample(("Q: 2+2?\nA:", " 3"), ("Q: 2+2?\nA:", " 4"), target="1"), "Q: 2+2?\nA:", " 4"),
        (sample(("Q: 2+2?\nA:", " 4"), target=" 4"), "Q: 2+2?\nA:", " 4"),
        ({**sample(), "arguments": [["Q: 2+2?", {"until": []}]], "target": "4"}, "Q: 2+2?", None),
    ],
)
def test_samples_of_lm_eval_are_prompts(data: dict, prompt: str, continuation: str | None) -> None:
    found = row(data)
    assert (found.prompt, found.continuation) == (prompt, continuation) and found.passed["acc"] == 1
    assert "last" not in row({"last": "answer", **data}).passed


def test_a_sample_of_a_chat_is_its_messages_and_one_without_its_right_choice_is_refused() -> None:
    assert said(row(sample(([json.dumps([USER])], {}), target="x"))) == [("user", "Name a lake.")]
    with pytest.raises(SpecError, match="its arguments are 2 requests, and target = 'B' is none of them"):
        row(sample(("Q", " A"), ("Q", " B"), target="B"))
