"""Verifiers: what they hold for right, on texts as people and models write them and on any text at all."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvq_core.errors import SpecError
from kvq_core.studies.tasks import VERIFIERS, judge

CALL = [{"name": "book", "arguments": {"city": "Oslo", "people": 4}}]
TWO = [*CALL, {"name": "now", "arguments": {}}]
DEEP = [{"f": {"x": [{"at": [{"east": 10.5, "of": "B"}]}]}}]  # as BFCL's live_multiple_121-46-0
ALLOWED = [{"book": {"city": ["Oslo", "Oslo, Norway"], "people": [4], "table": ["window", ""]}}]


@pytest.mark.parametrize(
    ("verifier", "answer", "text", "right"),
    [
        ("exact", "Hello, world", "  hello   WORLD! ", True),
        ("exact", "Hello", "Hello there", False),
        ("exact", 1000, "1,000.", True),
        ("contains", "New York", "It is new york, I think.", True),
        ("contains", "york", "Yorkshire", False),
        ("contains", "48213", "The number is 48,213.", True),
        ("contains", "48213", "482130", False),
        ("contains", -5, "It is \u22125.", True),
        ("contains", 5, "It is -5.", False),
        ("contains", 2.5, "2.50", True),
        ("contains", "Stra\u00dfe", "die STRASSE", True),
        ("all_of", ["12", "345"], "345 and 12", True),
        ("all_of", ["12", "345"], "12345", False),
        ("choice", {"right": ["a1"], "wrong": ["b2"]}, "a1", True),
        ("choice", {"right": ["a1"], "wrong": ["b2"]}, "a1 or b2", False),
        ("number", 7, "3 + 4 = 7.", True),
        ("number", 7, "7, for 3 + 4", False),
        ("number", 1234567, "That makes 1'234'567", True),
        ("number", -12, "3 - 15 = -12", True),
        ("number", 4, "10-6=4", True),
        ("number", 0.1, "about 0.10 in all", True),
        ("number", 7, "seven", False),
        ("json", {"a": 1, "b": ["x"]}, 'Here: ```json\n{"b": ["X "], "a": 1.0}\n```', True),
        ("json", {"a": 1}, '{"a": true}', False),
        ("json", {"a": 1}, '{"a": "1"}', False),
        ("json", {"a": 1}, '{"a": 1, "b": 2}', False),
        ("json", {"a": 1}, '{"a": NaN} {"a": 1}', True),
        ("json", [1, 2], "[2, 1]", False),
        ("tool_calls", CALL, '<tool_call>\n{"name": "book", "arguments": {"people": 4, "city": "oslo"}}\n', True),
        ("tool_calls", CALL, '{"name": "book", "parameters": "{\\"city\\": \\"Oslo\\", \\"people\\": 4}"}', True),
        ("tool_calls", CALL, '[{"function": {"name": "book", "arguments": {"city": "Oslo", "people": 4}}}]', True),
        ("tool_calls", CALL, "```python\n[book(city='Oslo', people=4)]\n```", True),
        ("tool_calls", CALL, "book('Oslo', 4)", False),
        ("tool_calls", CALL, "book(city='Oslo', people=5)", False),
        ("tool_calls", CALL, "book(city='Oslo', people=4, now=1)", False),
        ("tool_calls", TWO, "[now(), book(people=4, city='Oslo')]", True),
        ("tool_calls", TWO, "[book(people=4, city='Oslo'), book(people=4, city='Oslo')]", False),
        ("tool_calls", CALL, "__import__('os').system('true')", False),
        ("bfcl", ALLOWED, "[book(city='Oslo Norway', people=4)]", True),
        ("bfcl", ALLOWED, "[book(city='Oslo', people=4, table='window')]", True),
        ("bfcl", ALLOWED, "[book(city='Oslo', people=4, table='door')]", False),
        ("bfcl", ALLOWED, "[book(city='Oslo')]", False),
        ("bfcl", [{"f": {"x": [{"a": [1, 2]}]}}], '{"name": "f", "arguments": {"x": {"a": 2}}}', True),
        ("bfcl", [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}], "[f(x=1), f(x=2)]", True),
        ("bfcl", DEEP, "[f(x={'at': {'east': 10.5, 'of': 'B'}})]", True),
        ("bfcl", DEEP, "[f(x={'at': {'east': 10.5}})]", False),
        ("bfcl", DEEP, "[f(x={'at': {'east': 50, 'of': 'B'}})]", False),
    ],
)
def test_a_verifier_holds_what_is_right_for_right(verifier: str, answer: Any, text: str, right: bool) -> None:
    assert judge(verifier, answer, text) is right


ANSWERS: dict[str, Any] = {
    "exact": "one 2",
    "contains": "one 2",
    "all_of": ["one", 2],
    "choice": {"right": ["one"], "wrong": ["two"]},
    "number": 2,
    "json": {"a": [1]},
    "tool_calls": CALL,
    "bfcl": ALLOWED,
}


@given(st.text(alphabet=st.characters() | st.sampled_from("{}[]()\"'\\,.:-_0123456789"), max_size=60))
@settings(max_examples=100)
def test_any_text_is_judged(text: str) -> None:
    """And nothing that does not hold a part of the answer is right."""
    for verifier in VERIFIERS:
        right = judge(verifier, ANSWERS[verifier], text)
        assert not right or any(part in text.casefold() for part in ("one", "2", "a", "book"))


JSON = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


@pytest.mark.slow
@given(OBJECTS, st.sampled_from(["{}", "Here it is:\n{}\nDone.", "```json\n{}\n```"]))
def test_json_is_found_wherever_it_stands(value: dict[str, Any], frame: str) -> None:
    assert judge("json", value, frame.replace("{}", json.dumps(value, ensure_ascii=False), 1))
    assert not judge("json", {**value, "one more": 1}, json.dumps(value))


@given(st.integers(-(10**30), 10**30), st.sampled_from(["{}", "{:,}", "It is {:,}.", "= {}", "**{:_}**"]))
def test_a_number_is_read_however_it_is_written(value: int, frame: str) -> None:
    assert judge("number", value, frame.format(value))
    assert judge("contains", value, frame.format(value))
    assert not judge("number", value + 1, frame.format(value))


@given(OBJECTS, st.randoms())
def test_calls_are_judged_in_any_order(arguments: dict[str, Any], random: Any) -> None:
    wanted = [{"name": name, "arguments": arguments} for name in ("one", "two", "two")]
    said = random.sample(wanted, 3)
    assert judge("tool_calls", wanted, "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in said))
    assert not judge("tool_calls", wanted, json.dumps(said[:2]))


@pytest.mark.parametrize(
    ("verifier", "answer", "why"),
    [
        ("jsn", 1, r"Unknown verifier 'jsn'. Did you mean 'json'\? Available: exact, "),
        ("all_of", "one", "verifier all_of: answer = 'one' is not allowed; give a list of texts or numbers"),
        ("all_of", [], "verifier all_of"),
        ("number", "none", "verifier number: answer = 'none' is not allowed; give a number"),
        ("json", "{}", "verifier json"),
        ("tool_calls", [{"arguments": {}}], "verifier tool_calls"),
        ("choice", {"right": ["a"]}, "verifier choice"),
        ("choice", {"right": ["a"], "wrong": ["\u274c"]}, "verifier choice"),
        (
            "contains",
            "\u274c\u2705",
            "verifier contains: answer = '\u274c\u2705' is not allowed; give a number, or a text",
        ),
        ("all_of", ["a", " "], "verifier all_of"),
        ("exact", "", "verifier exact"),
    ],
)
def test_an_answer_that_judges_nothing_is_refused(verifier: str, answer: Any, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        judge(verifier, answer, "text")


@pytest.mark.slow
def test_deep_and_long_texts_are_judged() -> None:
    deep = "[" * 5000
    assert not judge("json", {"a": 1}, deep)
    assert not judge("tool_calls", CALL, deep + "f()")
    assert judge("number", 5, "1" * 5000 + " 5")
