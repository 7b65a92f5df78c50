"""Claims about time: judged by hand-made cases, shipped as the benchmark's files say, told where they contradict."""

import json

import pytest

from benchmarks.by_gpu import judged
from benchmarks.latency import NO_CASE, judge_device, latency_json
from kvq_core.claims import papers
from kvq_core.claims.latency import stored_latency
from kvq_core.claims.tables import latency_table, plain_latency
from ui.form.editor import method_notes
from ui.html.claims_table import latency_claims

FACTS = {"device": "A <b>card</b>", "torch": "2", "triton": "3", "kernels": "0123456789"}


def timing(ms: float) -> dict[str, float]:
    return {"ms": ms, "q1": ms, "q3": ms}


def step(innerq: float, kivi: float) -> dict[str, dict[str, float]]:
    return {"innerq-hybrid-2": timing(innerq), "kivi-2": timing(kivi), "fp16_matmul": timing(5)}


def by_id(cases):
    return {claim.id: claim for claim in judge_device(FACTS, False, cases).claims}


@pytest.mark.parametrize(
    ("times", "word"),
    [([(1, 2), (1, 3)], "holds"), ([(1, 2), (3, 2)], "does not hold here"), ([(2, 2)], "does not hold here")],
)
def test_every_case_has_to_hold(times, word):
    found = by_id({f"decode/model/b8/{at}": step(*pair) for at, pair in enumerate(times)})["innerq-inner"]
    assert found.verdict == word and len(found.texts) == len(times)
    assert found.texts[0].numbers["times_kivi"] == times[0][0] / times[0][1]


def test_what_no_case_says_is_not_measured():
    found = by_id({"decode/model/b8/1": step(1, 2)})
    assert found["innerq-matmul"].verdict == "not measured"  # the paper's batch is 1
    assert by_id({"decode/model/b8/1": {"kivi-2": timing(1)}})["innerq-inner"].verdict == "not measured"
    assert found["squat-throughput"].reason == NO_CASE and not found["squat-throughput"].numbers


def test_a_number_may_be_of_another_case_of_the_same_batch():
    ms = {"fp16": 10.0, "kivi": 3.0, "squat": 4.0}
    cases = {f"generate/{kind}/{batch}": {"graph": timing(ms[kind] * batch)} for kind in ms for batch in (1, 8)}
    found = by_id(cases)["squat-throughput"]
    assert found.numbers["times_fp16"].mean == 2.5 and found.numbers["times_kivi"].mean == 0.75
    assert found.verdict == "does not hold here"  # 0.75 of KIVI's is not about as many


def test_a_description_says_what_contradicts_its_paper_and_nothing_else():
    slower = judge_device(FACTS, True, {"decode/m/b1/1": step(3, 2), "layers/m/b1/1": step(1, 2)})
    (words,) = json.loads(latency_json((slower,)))["said"]["InnerQ"]
    assert "0.50 to 1.50 times KIVI's time" in words and "1 of 2 cases" in words
    faster = judge_device(FACTS, False, {"decode/m/b1/1": step(1, 2)})
    assert json.loads(latency_json((faster,)))["said"] == {}


def test_what_ships_is_what_the_benchmark_measured():
    boards = judged()
    assert stored_latency().boards == boards and len(boards) == 2
    ids = [claim.id for paper in papers().values() for claim in paper.latency]
    assert all([claim.id for claim in board.claims] == ids for board in boards)


def test_innerqs_contradiction_is_said_where_innerq_is_shown():
    (words,) = stored_latency().said["InnerQ"]
    assert "times KIVI" in words and words.replace("'", "&#x27;") in method_notes("innerq")
    assert words not in method_notes("kivi")


def test_they_are_told_in_tables_and_escaped():
    board = judge_device(FACTS, True, {"decode/m/b1/1": step(3, 2)})
    page = latency_claims([board])
    assert "<b>card" not in page and "does not hold here" in page and latency_claims([]) == ""
    assert "which have changed since" in plain_latency([board]) and "NOT MEASURED" in plain_latency([board])
    assert "times kivi 1.5 < 1" in latency_table([board])
