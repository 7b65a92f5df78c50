"""Cases of policies, judged again by what engines ship."""

from benchmarks.by_policy import policies_part
from benchmarks.policies import beside


def case(policy: float, uniform: float) -> dict:
    own = {"lane": {"method": "q4_0"}, "bytes": 10, "predicted": 1.0, "measured": uniform}
    made = {"lane": {"rules": []}, "bytes": 12, "predicted": 0.1, "measured": policy}
    ends = {**own, "bytes": 20, "measured": 0.5}
    return {"budget": 15, **made, "beats": True, "policy": made, "uniform": own, "ends": ends}


def shipped(measured: float | None) -> dict:
    return {"title": "q5_0, rotated", "lane": {"method": "q5_0"}, "bytes": 11, "predicted": None, "measured": measured}


def test_a_shipped_lane_that_is_nearer_is_what_the_policy_must_beat():
    found = beside(case(0.02, 0.05), [shipped(None), shipped(0.03), shipped(0.4)])
    assert not found["beats"] and found["lane"] == {"method": "q5_0"} and found["measured"] == 0.03
    assert found["of_candidates"]["measured"] == 0.05 and found["of_shipped"]["measured"] == 0.03
    assert found["lanes"] == 2 and found["policy"]["measured"] == 0.02


def test_judging_again_forgets_nothing_of_the_candidates():
    once = beside(case(0.02, 0.05), [shipped(0.03)])
    again = beside(once, [shipped(0.06)])
    assert again["beats"] and again["lane"] == {"rules": []} and again["uniform"]["measured"] == 0.05
    assert beside(once, [shipped(0.03)]) == once


def test_the_documents_say_both_and_what_was_not_measured(monkeypatch):
    budgets = {"5": beside(case(0.02, 0.05), [shipped(0.03)]), "6": case(0.02, 0.05)}
    part = {"title": "M", "prompts": 3, "budgets": budgets, "scoring_cpu_s": []}
    monkeypatch.setattr("benchmarks.by_policy.figures", lambda name: {"m": part})
    told = policies_part()
    assert "| 0.1 | 0.02 | 5.00 | 0.05 | 2.5 | 0.03 | q5_0, rotated | 1.5 |" in told
    assert "| 0.05 | 2.5 | not measured |" in told
    assert "Of 2 cases the prediction is within a factor of 1.5 of what was measured in 0;" in told
    assert "does in 2. All that engines ship ran beside 1 of them. The answer is the policy in 1 and" in told
