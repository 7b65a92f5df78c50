"""What a model's chat template may take: a program that came with the model."""

import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from kvq_core.errors import KvqError, SpecError
from kvq_core.machine.apart import apart
from kvq_core.machine.owner import owned
from kvq_core.models import template
from kvq_core.models.chat_turns import turn_ids, turns
from kvq_core.models.reader import render_each
from kvq_core.spec import DEFAULT_MODEL, Message

WELL = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}m:{% endif %}"
TALK = WELL.replace("m:{%", "assistant: {%")
ENDLESS = (
    "{% macro again(n) %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}{% endmacro %}"
    "{{ again(1) }}{{ messages[0].content }}"
)
LARGE = "{{ 'x' * 10 ** 12 }}"
LONG = "{{ messages[0].content }}{{ 'x ' * 2100000 }}"
ABORT = "abort"


class Tokenizer:
    """Of a model whose template is ``told``; what is tokenized is counted."""

    def __init__(self, told: str):
        self.chat_template, self.read = told, []

    def apply_chat_template(self, messages, add_generation_prompt=True, **more):
        if self.chat_template == ABORT:
            import os

            os._exit(3)
        found = render_jinja_template(
            [messages], chat_template=self.chat_template, add_generation_prompt=add_generation_prompt
        )
        return found[0][0]

    def __call__(self, text, **more):
        self.read.append(text)
        return {"input_ids": [1]}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(template, "SECONDS", 0.5)


BAD = [(ENDLESS, "took more than"), (LARGE, "took more than"), (ABORT, "took more than")]
SAID = [Message(role="user", content="Hi"), Message(role="assistant", content="Yes"), Message(role="user", content="B")]


@pytest.mark.slow
@pytest.mark.parametrize(("told", "said"), BAD, ids=["endless", "large", "abort"])
def test_a_template_that_takes_too_much_is_refused_in_a_line_for_prompts_and_conversations(told, said):
    tokenizer = Tokenizer(told)
    with pytest.raises(SpecError, match=f"The chat template of some/model {said}.*set chat = false"):
        render_each(tokenizer, "some/model", [("Hi", None)], chat=True)
    with pytest.raises(SpecError, match=said):
        turn_ids(tokenizer, "some/model", (), SAID, ())
    assert not tokenizer.read


def test_a_long_conversation_is_given_more_time_and_a_short_one_is_not(monkeypatch):
    given = []

    def apart(work, seconds, room):
        given.append(seconds)
        return work()

    monkeypatch.setattr(template, "apart", apart)
    for count in (3, 83):
        turn_ids(Tokenizer(TALK), "some/model", (), [SAID[at % 2] for at in range(count)], ())
    render_each(Tokenizer(WELL), "some/model", [("Hi", None)] * 60, chat=True)
    assert given == [0.5, 0.5 * 83 / 8, 0.5]


def test_all_texts_of_a_conversation_are_looked_for_at_once():
    """One that is not found is looked for by itself: another text in its neighbours must not lose it."""
    tokenizer, asked = Tokenizer(TALK), []
    write = tokenizer.apply_chat_template

    def counted(messages, **more):
        asked.append(messages)
        if sum("mark" in message["content"] for message in messages) > 1:
            raise ValueError("one at a time")
        return write(messages, **more)

    said = [SAID[at % 2] for at in range(40)]
    whole = turns(tokenizer, DEFAULT_MODEL, said, ())
    tokenizer.apply_chat_template = counted
    assert turns(tokenizer, DEFAULT_MODEL, said, ()) == whole
    by_one = len(asked)
    asked.clear()
    tokenizer.apply_chat_template = lambda messages, **more: asked.append(messages) or write(messages, **more)
    assert turns(tokenizer, DEFAULT_MODEL, said, ()) == whole
    assert len(asked) == by_one - 40 == 1 + 1 + 2 * 20


@pytest.mark.parametrize("model", ["some/model", DEFAULT_MODEL])
def test_more_text_than_is_read_is_refused_before_it_is_tokenized(model, monkeypatch):
    monkeypatch.setattr(template, "SECONDS", 60)  # it is about characters
    tokenizer = Tokenizer(LONG)
    (found,) = render_each(tokenizer, model, [("Hi", None)], chat=True)
    assert isinstance(found, SpecError) and "4,200,002 characters of this prompt; at most 4,000,000" in str(found)
    with pytest.raises(SpecError, match="at most 4,000,000"):
        turn_ids(tokenizer, model, (), SAID[:1], ())
    assert not tokenizer.read


def test_a_template_run_apart_writes_what_it_writes_here():
    prompts = [("Hi", None), ("Ho", "Be brief."), ("", "")]
    there, here = (render_each(Tokenizer(WELL), id, prompts, chat=True) for id in ("some/model", DEFAULT_MODEL))
    assert list(map(str, there)) == list(map(str, here)) and "system: Be brief." in here[1]
    assert render_each(Tokenizer(ABORT), "some/model", prompts, chat=False) == ["Hi", "Ho", ""]


@pytest.mark.slow
def test_a_template_is_ended_when_nobody_waits_for_it(monkeypatch):
    monkeypatch.setattr(template, "SECONDS", 60)
    end = time.monotonic() + 0.3
    with owned(lambda: time.monotonic() < end), pytest.raises(KvqError, match="Nobody waited"):
        render_each(Tokenizer(ENDLESS), "some/model", [("Hi", None)], chat=True)


def test_what_is_run_apart_answers_fails_and_is_ended():
    assert apart(lambda: {"a": [1]}, 5, 10**8) == {"a": [1]}
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 / 0, 5, 10**8)
    with pytest.raises(MemoryError):
        apart(lambda: len(bytearray(10**9)), 5, 10**8)
    with pytest.raises(TimeoutError):
        apart(lambda: time.sleep(60), 0.2, 10**8)
