"""Suites of tasks: the same on every machine, their answers found again by reading the prompts alone."""

import hashlib
import json
import operator
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kvq_core.errors import SpecError
from kvq_core.models import identity_of
from kvq_core.presets import FOLDER
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.studies.cells import plan
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.spec import parse_study
from kvq_core.studies.task_suites import left_out
from kvq_core.studies.tasks import SUITES, judge, suite
from tests.support.study_models import study_data, write_model

N = 12
HARDER: dict[str, dict[str, Any]] = {
    "needle": {"lengths": [40, 90], "depths": [0, 1], "digits": 7},
    "needle_multi_key": {"keys": 9},
    "needle_multi_query": {"queries": 4},
    "needle_multi_value": {"values": 4},
    "variable_tracking": {"lengths": [200], "hops": 4, "chains": 3},
    "common_words": {"common": 4, "times": 6, "others": 20, "once": 3},
    "frequent_words": {"asked": 3, "kinds": 20, "length": 300},
    "chain_sums": {"terms": 6, "digits": 3, "minus": True},
    "json": {"lengths": [80], "fields": 5},
    "tools": {"tools": 6, "calls": 3},
}
ASKED = {name: [{}, HARDER[name]] for name in HARDER}
CASES = [pytest.param(name, options, id=f"{name}-{i}") for name in ASKED for i, options in enumerate(ASKED[name])]


def needles(prompt: StudyPrompt) -> list[str]:
    """Read by a pattern of its own: every number said of a key that the question names."""
    text, question = prompt.prompt.rsplit("\n\n", 1)
    named = set(re.findall(r"\bfor (\w+)", question))
    return sorted(value for key, value in re.findall(r"number for (\w+) is (\d+)", text) if key in named)


def variables(prompt: StudyPrompt) -> list[str]:
    """Run the assignments as a program, in the order of the text, and look who holds the value."""
    program, question = prompt.prompt.rsplit("Memorize", 1)[1].split("Question:")
    held: dict[str, str] = {}
    for name, source, value in re.findall(r"VAR (\w+) = (?:VAR (\w+)|(\d+))\.", program):
        held[name] = value or held[source]
    wanted = re.findall(r"\d+", question)[-1]
    return sorted(name for name, value in held.items() if value == wanted)


def listed(prompt: StudyPrompt) -> dict[str, list[str]]:
    """Count the words of the list; what is asked for must stand apart from what follows."""
    text, question = prompt.prompt.rstrip().rsplit("\n", 1)
    counts = Counter(re.findall(r"[a-z]+", text.split("\n", 1)[1])).most_common()
    asked = int(next(iter(re.findall(r"Which (\d+)", question)), 1))
    assert counts[asked - 1][1] > counts[asked][1]
    return {"right": sorted(w for w, _ in counts[:asked]), "wrong": sorted(w for w, _ in counts[asked:])}


def chain(prompt: StudyPrompt) -> int:
    """Add up from left to right, a token at a time."""
    total, step = 0, operator.add
    for token in prompt.prompt.split(": ")[1].removesuffix(" =").split():
        if token in "+-":
            step = {"+": operator.add, "-": operator.sub}[token]
        else:
            total = step(total, int(token))
    return total


PATTERNS = {
    "name": r"(\w+) is \d+ years",
    "age": r"is (\d+) years",
    "city": r"lives in (\w+)",
    "job": r"works as a (\w+)",
    "color": r"has a (\w+) coat",
}


def person(prompt: StudyPrompt) -> dict[str, Any]:
    head, told = prompt.prompt.split("\n\n")[0], prompt.prompt.rsplit("Text: ", 1)[1]
    keys = head.split("keys ")[1].rstrip(".").split(", ")
    found: dict[str, Any] = {key: re.findall(PATTERNS[key], told)[0] for key in keys}
    return {**found, "age": int(found["age"])}


REQUESTS = {
    "get_weather": r"weather in (?P<city>\w+)\?",
    "set_timer": r"timer for (?P<minutes>\d+) minutes",
    "send_message": r'Send (?P<recipient>\w+) a message with the text "(?P<text>\w+)"',
    "book_table": r"table for (?P<people>\d+) people in (?P<city>\w+)\.",
    "set_light": r"light (?P<color>\w+)\.",
    "add_item": r'Put (?P<count>\d+) of the item "(?P<item>\w+)"',
}


def tool_calls(prompt: StudyPrompt) -> list[dict[str, Any]]:
    """Match the request against each tool that is offered, arguments typed by its schema."""
    assert prompt.messages is not None
    found = []
    for tool in (tool["function"] for tool in prompt.tools):
        match = re.search(REQUESTS[tool["name"]], prompt.messages[0].content)
        if match:
            types = {key: kind["type"] for key, kind in tool["parameters"]["properties"].items()}
            given = {key: int(v) if types[key] == "integer" else v for key, v in match.groupdict().items()}
            found.append({"name": tool["name"], "arguments": given})
    return sorted(found, key=lambda call: call["name"])


def by_name(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(answer, key=lambda call: call["name"])


def in_order(answer: dict[str, list[str]]) -> dict[str, list[str]]:
    return {key: sorted(words) for key, words in answer.items()}


SOLVED: dict[str, tuple[Callable[[StudyPrompt], Any], Callable[[Any], Any]]] = {
    **{name: (needles, sorted) for name in SUITES if name.startswith("needle")},
    "variable_tracking": (variables, sorted),
    "common_words": (listed, in_order),
    "frequent_words": (listed, in_order),
    "chain_sums": (chain, int),
    "json": (person, dict),
    "tools": (tool_calls, by_name),
}


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_answer_is_what_its_prompt_says(name: str, options: dict[str, Any]) -> None:
    solve, ordered = SOLVED[name]
    for prompt in suite(name, N, seed=3, **options):
        assert ordered(prompt.answer) == solve(prompt), prompt.id


def written(prompt: StudyPrompt) -> str:
    """The answer as somebody would write it."""
    answer: Any = prompt.answer
    if prompt.verifier == "choice":
        return f"They are {', '.join(answer['right'])}."
    if prompt.verifier == "all_of":
        return f"These: {' and '.join(answer)}."
    return json.dumps(answer)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_answer_is_judged_right_and_no_other_prompts(name: str, options: dict[str, Any]) -> None:
    prompts = suite(name, N, **options)
    said = [written(prompt) for prompt in prompts]
    for prompt, own in zip(prompts, said, strict=True):
        assert prompt.verifier is not None
        assert judge(prompt.verifier, prompt.answer, own)
        assert not judge(prompt.verifier, prompt.answer, "I do not know.")
    different = [(p, s) for p in prompts for q, s in zip(prompts, said, strict=True) if p.answer != q.answer]
    assert different
    assert not any(judge(p.verifier or "", p.answer, s) for p, s in different)


HASHES: dict[str, str] = {
    "needle": "b635e3d3489d72cb",
    "needle_multi_key": "80624890bf67f349",
    "needle_multi_query": "55b0a4388a728df8",
    "needle_multi_value": "02ebe0c4290cd1df",
    "variable_tracking": "706a0bb6b1eaa12c",
    "common_words": "0a11d568b8529eda",
    "frequent_words": "f667b8eee0a4a68b",
    "chain_sums": "712d9fed55e97c45",
    "json": "ab9f40ce4ef5b86d",
    "tools": "fa12b018d0e3ade1",
    "long": "a4c2873162dd98fe",
}


@pytest.mark.parametrize("name", SUITES)
def test_prompts_are_the_same_everywhere(name: str) -> None:
    made = json.dumps([p.model_dump(mode="json", exclude={"last"}) for p in suite(name, N, seed=7)], sort_keys=True)
    assert hashlib.sha256(made.encode()).hexdigest()[:16] == HASHES[name]


@pytest.mark.parametrize("name", SUITES)
def test_more_prompts_begin_with_the_fewer_and_another_seed_makes_others(name: str) -> None:
    few, more = suite(name, 3), suite(name, 9)
    assert more[:3] == few
    assert len({p.id for p in more}) == 9
    assert {p.prompt or p.messages for p in suite(name, 9, seed=1)} != {p.prompt or p.messages for p in more}


def test_a_map_of_depth_and_length_is_filled_evenly() -> None:
    prompts = suite("needle", 24, lengths=[40, 400, 4000], depths=[0, 0.3, 0.6, 1])
    cells = Counter((p.facts["words"], p.facts["depth"]) for p in prompts)
    assert set(cells.values()) == {2}
    assert len(cells) == 12
    for prompt in prompts:
        text = prompt.prompt.split("\n\n")[1]
        before = text.index("The special magic number") / len(text)
        assert before == pytest.approx(float(str(prompt.facts["depth"])), abs=0.25 if len(text) < 1000 else 0.06)
        assert 0 <= len(text.split()) - int(str(prompt.facts["words"])) < 35


def test_long_answers_are_asked_for_and_not_judged() -> None:
    prompts = suite("long", 20)
    assert len({p.facts["topic"] for p in prompts}) == 20
    assert all(p.answer is None and p.verifier is None and "1200 words" in p.prompt for p in prompts)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"name": "needel"}, r"Unknown suite 'needel'. Did you mean 'needle'\? Available: needle, .*long\."),
        ({"name": "needle", "n": 0}, "suite needle: n = 0 is not allowed; give a whole number from 1 to"),
        ({"name": "needle", "seed": True}, "suite needle: seed = True is not allowed"),
        ({"name": "needle", "depth": 0.5}, "suite needle: Unknown field 'depth'; allowed: lengths, depths, digits"),
        ({"name": "needle", "depths": [1.5]}, r"suite needle: depths\[0\] = 1.5 is not allowed"),
        ({"name": "needle", "lengths": []}, r"suite needle: lengths = \[\] is not allowed"),
        ({"name": "common_words", "times": 2, "once": 2}, "suite common_words: once = 2 .* give less than times, 2"),
        ({"name": "frequent_words", "asked": 6}, "asked = 6 is not allowed; give less than kinds, 6"),
        ({"name": "frequent_words", "asked": 5, "length": 10}, "length = 10 tells the 5 most frequent words from no"),
        ({"name": "tools", "tools": 1, "calls": 2}, "suite tools: calls = 2 is not allowed; give at most tools, 1"),
    ],
)
def test_what_a_suite_cannot_make_is_refused_in_one_line(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why) as refused:
        suite(**asked)
    assert "\n" not in str(refused.value)


def test_studies_leave_out_what_was_measured_to_be_too_hard():
    """With a suite's own options, for that model alone; with easier ones it is asked."""
    measured = json.loads((FOLDER.parent / "benchmarks" / "tasks.json").read_text())
    told = {model: {n: s["left_out"] for n, s in found["suites"].items()} for model, found in measured.items()}
    for model, found in told.items():
        assert {name: left_out(model, name, {}) is not None for name in found} == {n: bool(w) for n, w in found.items()}
        assert sum(why is None for why in found.values()) >= 4, "three kinds and long"
    assert left_out(DEFAULT_MODEL, "common_words", {"words": 5}) is None
    assert "fewer than half" in left_out(DEFAULT_MODEL, "common_words", {})


@pytest.mark.slow
def test_a_suite_that_is_left_out_for_one_model_is_asked_of_the_others(tmp_path, monkeypatch):
    places = [write_model(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    first = identity_of(str(places[0]))["id"]
    monkeypatch.setattr("kvq_core.studies.task_suites._left_out", lambda: {first: {"chain_sums": "1 of 20 right"}})
    data = study_data(places[0], models=[str(place) for place in places])
    data["prompts"] = {"suite": "chain_sums", "n": 3}
    planned = plan(parse_study(data))
    assert len(planned.cells) == 3 and first not in planned.models
    assert {each.why.split(":")[0] for each in planned.left_out} == {
        f"chain_sums is left out for {first.split(':')[0]}"
    }
    assert plan(planned.spec.whole(planned.prompts)).id == planned.id, "what is kept of it is the same study"
    with pytest.raises(SpecError, match="None of the prompts can be run. The first: chain_sums is left out"):
        plan(parse_study({**data, "models": [str(places[0])]}))


@pytest.mark.slow
def test_no_variable_is_named_as_a_word_of_the_question():
    """A text that repeats the question would name it."""
    samples = [prompt.prompt for prompt in suite("variable_tracking", 400, lengths=[200], hops=16, chains=8)]
    drawn = {name.casefold() for prompt in samples for name in re.findall(r"VAR (\w+) =", prompt)}
    said = re.findall(r"[a-z]+", samples[0].split("Question:")[-1].casefold())
    assert len(drawn) > 10_000 and not drawn & {"and", "var", *said}
