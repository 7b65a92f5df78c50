"""What runs are expected to take: fitted on those before, counted down, and corrected by the pace of this one."""

import pytest

from kvq_core.machine import files
from kvq_core.pipeline.timings import RemainingTime, Stages, TimedWork, memory_file, predict
from kvq_core.record.events import Encoding, LaneProgress, Loading, Prefill, Step, Summarizing

PLAN = Stages(4.0, 6.0, 20.0, 2.0)
LANE = LaneProgress("a", [], [], [], None)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(plan: Stages | None, slower: float) -> list[tuple[float, float | None]]:
    """(what is left, what was said to be left) after every event of a run of PLAN on a machine so much slower."""
    clock = Clock()
    remaining, found, end = RemainingTime(plan, clock), [], 100.0 + slower * PLAN.total
    course = [(0.0, Loading("m"))]
    course += [(PLAN.prefill * n / 4, Prefill(n, 4)) for n in range(5)]
    course += [(4.0 + PLAN.encode * n / 3, Encoding("a", n, 3)) for n in range(3)]
    course += [(10.0 + PLAN.decode * n / 40, Step(n, 40, [], [LANE])) for n in range(1, 41)]
    for at, event in [*course, (30.0, Summarizing())]:
        clock.now = 100.0 + slower * at
        found.append((end - clock.now, remaining.after(event)))
    return found


def test_a_run_as_planned_counts_down_to_nothing():
    for left, said in told(PLAN, 1.0):
        assert said == pytest.approx(left, abs=0.1)


@pytest.mark.parametrize("slower", [0.5, 2.0])
def test_another_pace_is_noticed_within_the_run(slower):
    whole = slower * PLAN.total
    after = [(left, said) for left, said in told(PLAN, slower) if left < 0.6 * whole]
    assert len(after) > 20
    assert max(abs(said - left) for left, said in after) < 0.2 * whole
    assert after[-1][1] == pytest.approx(after[-1][0], rel=0.2)


def test_without_a_plan_the_steps_alone_tell():
    found = told(None, 1.0)
    assert [said for _, said in found[:12]] == [None] * 12 and found[-1][1] is None
    some = [(left, said) for left, said in found if said is not None]
    assert len(some) > 30 and all(said == pytest.approx(left - PLAN.measure, rel=0.26) for left, said in some)


def spent(work: TimedWork, dear: bool) -> list[float]:
    """Of a machine whose stages cost what features say, and encoding three times that with another method."""
    prompt, rows = work.prompt / 1e3, work.rows
    steps = 0.02 * work.new + 0.004 * work.new * rows + 0.01 * work.new * rows * prompt
    return [0.1 + 2 * prompt, (3 if dear else 1) * 0.8 * prompt * rows, steps, 0.2 + 0.01 * work.new * rows]


def test_stages_are_learned_from_the_runs_before_those_of_the_same_methods_most(monkeypatch, tmp_path):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    assert predict("m", "normal", TimedWork(100, 10, 3)) is None
    rows = []
    for n, (prompt, new, lanes) in enumerate([(p, t, k) for p in (100, 400, 900) for t in (8, 64) for k in (3, 7)]):
        dear = n % 3 == 0
        work = TimedWork(prompt, new, lanes, "rvq" if dear else "kivi")
        rows.append([prompt, new, lanes, work.methods, *spent(work, dear)])
    files.keep_memo(memory_file("m", "normal"), [*rows, [1, 2, 3, 4.0]])  # the last one as an older version kept it
    for methods, within in (("kivi", 0.2), ("rvq", 0.45)):
        asked = TimedWork(600, 32, 5, methods)
        found, real = predict("m", "normal", asked), spent(asked, methods == "rvq")
        assert found.prefill == pytest.approx(real[0], rel=0.02) and found.decode == pytest.approx(real[2], rel=0.02)
        assert found.encode == pytest.approx(real[1], rel=within) and found.total == pytest.approx(sum(real), rel=0.2)
    assert predict("m", "deep", TimedWork(600, 32, 5)) is not None  # until its level was seen
    more = predict("m", "normal", TimedWork(600, 32, 5, "kivi", through=1000))
    assert more.encode - predict("m", "normal", TimedWork(600, 32, 5, "kivi")).encode == pytest.approx(2.0, rel=0.05)


def test_one_short_answer_tells_of_a_long_one(monkeypatch, tmp_path):
    """Most of measuring is done once a run, and reading the prompt grows with it: one run alone cannot say so."""
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    files.keep_memo(memory_file("m", "normal"), [[163, 8, 5, "kivi", 7.3, 6.3, 5.6, 9.3]])
    same, longer, other = (
        predict("m", "normal", TimedWork(p, n, 5, "kivi")) for p, n in ((163, 8), (163, 48), (652, 8))
    )
    assert (same.prefill, same.encode, same.decode, same.measure) == pytest.approx((7.3, 6.3, 5.6, 9.3))
    assert longer.decode == pytest.approx(6 * 5.6) and 9.3 < longer.measure < 2 * 9.3
    assert 2 * 7.3 < other.prefill < 4 * 7.3
