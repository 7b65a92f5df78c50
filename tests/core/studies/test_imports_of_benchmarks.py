"""Other people's benchmarks as rows: small files in their format, written for this."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvq_core.errors import SpecError
from kvq_core.studies.imports import bfcl, reasoning_gym, write_jsonl
from kvq_core.studies.prompts import StudyPrompt
from kvq_core.studies.tasks import judge

TOOL = {
    "name": "trip.book",
    "description": "Book a trip.",
    "parameters": {
        "type": "dict",
        "properties": {
            "type": {"type": "string", "description": "train or bus"},
            "price": {"type": "float"},
            "stops": {"type": "array", "items": {"type": "any"}},
        },
        "required": ["type"],
    },
}
QUESTION = {"id": "multiple_0", "question": [[{"role": "user", "content": "A train for 20.5."}]], "function": [TOOL]}
RIGHT = {"id": "multiple_0", "ground_truth": [{"trip.book": {"type": ["train"], "price": [20.5], "stops": ["", []]}}]}


def files(folder: Path, question: Any = QUESTION, right: Any = RIGHT) -> Path:
    (folder / "possible_answer").mkdir()
    for place, told in ((folder, question), (folder / "possible_answer", right)):
        line = told if isinstance(told, bytes) else json.dumps(told, ensure_ascii=False).encode()
        (place / "BFCL_v4_multiple.json").write_bytes(line + b"\n\n" + line + b"\n")
    return folder


def test_lines_end_where_json_ends_them_and_blank_ones_are_none(tmp_path: Path) -> None:
    question = {**QUESTION, "question": [[{"role": "user", "content": "A train\u2028for\x85me."}]]}
    found = bfcl("multiple", folder=files(tmp_path, question))
    assert [prompt.messages and prompt.messages[0].content for prompt in found] == ["A train\u2028for\x85me."] * 2
    for n in (0, -1):
        with pytest.raises(SpecError, match=f"n = {n} is not allowed"):
            bfcl("multiple", n=n, folder=tmp_path)


def test_a_category_is_not_another_whose_name_ends_alike(tmp_path: Path) -> None:
    folder = files(tmp_path)
    for place in (folder, folder / "possible_answer"):
        for other in ("live_multiple", "parallel_multiple"):
            (place / f"BFCL_v4_{other}.json").write_text("{}\n")
    assert {prompt.id for prompt in bfcl("multiple", folder=folder)} == {"bfcl-multiple_0"}


def test_a_question_of_bfcl_is_a_prompt_with_tools_and_judged(tmp_path: Path) -> None:
    [prompt] = bfcl("multiple", n=1, folder=files(tmp_path))
    assert (prompt.id, prompt.group, prompt.verifier) == ("bfcl-multiple_0", "multiple", "bfcl")
    assert prompt.messages is not None
    assert prompt.messages[0].content == "A train for 20.5."
    parameters = prompt.tools[0]["function"]["parameters"]
    assert (parameters["type"], parameters["properties"]["price"]["type"]) == ("object", "number")
    assert parameters["properties"]["stops"]["items"] == {"type": "string"}
    assert parameters["properties"]["type"]["description"] == "train or bus", "a field may be named type"
    assert judge("bfcl", prompt.answer, "[trip.book(type='train', price=20.5)]")
    assert not judge("bfcl", prompt.answer, "[trip.book(type='bus', price=20.5)]")


@pytest.mark.parametrize(
    ("category", "changed", "why"),
    [
        ("multiple", {"question": b"\xff"}, "Cannot read .*BFCL_v4_multiple.json: it is not text in UTF-8"),
        ("multi_turn_base", {}, "'multi_turn_base' is not imported; give one of simple_python"),
        ("parallel", {}, "holds no BFCL_v..._parallel.json"),
        (
            "multiple",
            {"question": {"id": "multiple_0"}},
            "line 1: it must be a JSON object with id, question, function",
        ),
        ("multiple", {"question": {**QUESTION, "question": []}}, "'multiple_0' is not a question of one turn"),
        ("multiple", {"right": {**RIGHT, "id": "multiple_9"}}, "'multiple_0' is not a question of one turn"),
    ],
)
def test_what_is_not_bfcls_is_refused(tmp_path: Path, category: str, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        bfcl(category, folder=files(tmp_path, **changed))


def test_bfcl_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match="pip install --no-deps bfcl-eval"):
        bfcl("multiple")
    with pytest.raises(SpecError, match="pip install reasoning-gym"):
        reasoning_gym("chain_sum")


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that looks like reasoning-gym."""
    package, base = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.dataset")

    class ProceduralDataset:
        def __init__(self, size: int, seed: int, answer: str = "1,000") -> None:
            self.seed, self.answer = seed, answer

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"question": f"{self.seed} and {index}?", "answer": self.answer, "metadata": {}}

        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return float(answer == entry["answer"])

    class Judged(ProceduralDataset):
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return 0.5

    def create_dataset(name: str, **options: Any) -> ProceduralDataset:
        kinds = {"plain": ProceduralDataset, "judged": Judged, "chain_sum": Judged}
        if name not in kinds:
            raise ValueError(f"Dataset '{name}' not registered")
        return kinds[name](**options)

    base.ProceduralDataset, package.create_dataset = ProceduralDataset, create_dataset  # type: ignore[attr-defined]
    for module in (package, base):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


@pytest.mark.usefixtures("gym")
def test_questions_of_reasoning_gym_are_prompts() -> None:
    one, two = reasoning_gym("plain", n=2, seed=5, answer="12")
    assert (one.prompt, two.prompt, one.verifier, one.answer) == ("5 and 0?", "5 and 1?", "number", "12")
    for text in ("Anna", "1e5", "infinity", "nan"):  # the second a number in base 16
        [named] = reasoning_gym("plain", n=1, answer=text)
        assert (named.answer, named.verifier) == (text, "contains")
    [summed] = reasoning_gym("chain_sum", n=1, answer="-1000")
    assert (summed.verifier, judge("number", summed.answer, "It is -1,000.0")) == ("number", True)
    with pytest.raises(SpecError, match="data set 'judged' judges answers by a program of its own"):
        reasoning_gym("judged")
    with pytest.raises(SpecError, match="data set 'none' as asked for: Dataset 'none' not registered"):
        reasoning_gym("none")
    with pytest.raises(SpecError, match="unexpected keyword"):
        reasoning_gym("plain", terms=3)


def test_rows_are_written_whole_and_read_again(tmp_path: Path) -> None:
    prompts = bfcl("multiple", folder=files(tmp_path))
    assert write_jsonl(prompts, tmp_path / "rows.jsonl") == 2
    read = [StudyPrompt(**json.loads(line)) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert tuple(read) == prompts
    with pytest.raises(SpecError, match="cannot be written: .*; give another place"):
        write_jsonl(prompts, tmp_path / "rows.jsonl" / "more.jsonl")
