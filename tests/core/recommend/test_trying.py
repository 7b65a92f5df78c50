"""Which formats layers are scored in, and which policies and uniform lanes are run and may be the answer."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvq_core.methods import ModelShape
from kvq_core.recommend.evidence import Option
from kvq_core.recommend.fronts import CANDIDATES, candidates_of
from kvq_core.recommend.held_out import DeployedLane
from kvq_core.recommend.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.recommend.policies import LayerPolicy
from kvq_core.recommend.policy_search import front_of, read_as, smallest
from kvq_core.recommend.sensitivity import Sensitivity
from kvq_core.recommend.solver import Costs
from kvq_core.spec import Lane

SHAPE = ModelShape(layers=4, query_heads=4, kv_heads=2, head_dim=64, context=1024)
LOSSES = {"q8_0": 1e-4, "q5_1": 0.006, "q5_0": 0.008, "q4_1": 0.03, "q4_0": 0.04, "iq4_nl": 0.02}


def lane(method: str, **more: Any) -> Lane:
    return Lane.model_validate({"label": method, "method": method, **more})


def chosen(losses: dict[str, float], limit: float, engine: str | None = None, **more: Any) -> list[str]:
    lanes = [lane(name, **more) for name in losses]
    return [each.label for _, each in candidates_of(pd.Series(losses), lanes, engine, SHAPE, limit)]


def test_candidates_are_the_first_format_that_holds_and_smaller_ones() -> None:
    """Not the three that lose least, of which a policy could save nothing."""
    assert chosen(LOSSES, 0.01) == ["iq4_nl", "q5_0"], "q4_0 and q4_1 are beaten, and larger ones do no more"
    assert chosen(LOSSES, 0.001) == ["iq4_nl", "q5_1", "q8_0"] and len(LOSSES) > CANDIDATES
    assert chosen(LOSSES, 1e-5) == ["q8_0"], "the others lose over 100 times what is tolerated"
    assert chosen(LOSSES, 1.0) == ["iq4_nl", "q5_0"], "the smallest holds; layers are scored all the same"


def test_candidates_are_whole_formats_of_the_engine() -> None:
    assert chosen(LOSSES, 0.01, "vllm") == [] and chosen(LOSSES, 0.01, "llama.cpp") == ["iq4_nl", "q5_0"]
    assert chosen(LOSSES, 0.01, tensors="keys") == []


def test_the_smallest_policy_that_is_predicted_to_hold_is_found() -> None:
    names, layers = ("q4", FP16), 4
    loss = np.zeros((2, layers, 2))
    loss[..., 0] = [[1.0, 0.1, 0.1, 0.1], [0.05] * layers]
    nbytes = np.zeros((2, layers, 2), int)
    nbytes[...] = [4500, 16000]
    costs = Costs(names, loss, nbytes)
    found = smallest(costs, 0.6, None, [])
    assert found is not None and found.predicted <= 0.6
    assert found.plan == LayerPlan((FP16, "q4", "q4", "q4"), ("q4",) * layers)
    assert smallest(costs, 0.6 / 3, None, []).nbytes > found.nbytes
    nothing = smallest(costs, 1e-9, None, [])
    assert nothing is None or nothing.predicted == 0


def rows(klds: dict[str, list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        {"lane": name, "prompt": f"p{at}", "kld_mean": kld} for name, own in klds.items() for at, kld in enumerate(own)
    )


def test_of_offered_lanes_those_on_the_front_may_be_the_answer() -> None:
    found = {"a": [0.1, 0.1], "b": [0.05, 0.05], "c": [0.06, 0.06], "d": [0.01, float("nan")]}
    lanes = [lane("q4_0").model_copy(update={"label": name}) for name in (*found, "e")]
    beside = [DeployedLane(each, nbytes, each.label) for each, nbytes in zip(lanes, (10, 20, 20, 30, 5), strict=True)]
    kept = front_of(lanes, rows(found), beside)
    assert [each.label for each in kept] == ["a", "b"], "d failed on a prompt, and e ran on none"


def policy(offered: tuple[Lane, ...], own: pd.DataFrame) -> LayerPolicy:
    scores = Sensitivity(id="a", version=1, model="m", layers=4, positions=32, formats=("q4_0",))
    named = lane("q4_0").model_copy(update={"label": "policy"})
    return LayerPolicy(named, lane("q4_1"), offered, own, None, scores, (Candidate.parse("q4_0"),))


@pytest.mark.parametrize(("loss", "gain"), [(0.05, True), (0.03, False)])
def test_a_policy_must_beat_offered_lanes_of_no_more_bytes(loss: float, gain: bool) -> None:
    """Twice as near as the best of them, whatever the study's own lanes lose."""
    turned = lane("q5_0", center="mean").model_copy(update={"label": "q5_0, keys centred"})
    own = rows({"policy": [0.02] * 5, "q5_0, keys centred": [loss] * 5, "q4_1": [0.3] * 5})
    made = policy((turned,), own)
    assert [each.label for each in made.lanes] == ["policy", "q5_0, keys centred"]
    whole = made.beside(rows({"q4_0": [0.4] * 8}))
    assert set(whole["lane"]) == {"q4_0", "policy", "q5_0, keys centred"} and set(whole["prompt"]) == set(own["prompt"])
    options = [Option(label, {}, 100) for label in ("q4_0", "policy", "q5_0, keys centred")]
    told = {each.label: each for each in made.judged(options, whole)}
    assert told["policy"].policy and (told["policy"].refused is None) == gain
    assert gain or "what q5_0, keys centred does" in str(told["policy"].refused)
    larger = [Option("policy", {}, 100), Option("q5_0, keys centred", {}, 101), Option("q4_0", {}, 100)]
    assert made.judged(larger, whole)[0].refused is None, "it takes more"
    other = [Option("policy", {}, 100), Option("q5_0, keys centred", {}, 100, refused="it has none")]
    assert made.judged(other, whole)[0].refused is None, "the engine cannot have it"


def test_a_policy_reads_the_prompt_as_its_formats_do() -> None:
    both = [lane("q8_0", prefill="deployed"), lane("q4_0", prefill="deployed")]
    assert read_as(lane("q5_0"), both).prefill == both[0].prefill
    assert read_as(lane("q5_0"), [both[0], lane("q4_0")]).prefill == lane("q5_0").prefill
