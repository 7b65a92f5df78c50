"""A decision as it is kept, what goes along with what layers cost, and policies by budget and engine."""

import json
import math
from functools import cache

import numpy as np
import pytest

from kvq_core.errors import SpecError, StoreError
from kvq_core.recommend.constraints import Advice
from kvq_core.recommend.decision import Decision, DecisionRequest, keep_decision, stored_decision
from kvq_core.recommend.fronts import fronts
from kvq_core.recommend.html import as_html
from kvq_core.recommend.layer_plans import Candidate
from kvq_core.recommend.markdown import as_markdown
from kvq_core.recommend.policies import Grounds, LayerSigns, predicts
from kvq_core.recommend.sensitivity import Score
from kvq_core.recommend.solver import Costs
from kvq_core.record.beside import write_beside
from kvq_core.record.store import Store, open_store
from kvq_core.shape import ModelShape
from tests.core.recommend.test_advice import asked, noisy, option, rows

LAYERS = 6


@cache
def advice() -> Advice:
    return asked([*rows("small", noisy(0.002)), *rows("large", noisy(1e-4))], [option("small"), option("large")])


def scored(formats: tuple[str, ...] = ("q4_0", "q8_0")) -> tuple[Score, ...]:
    """Layer n costs n + 1 times the first one's."""
    return tuple(
        Score(format=name, tensor=tensor, layer=n, kld_mean=1e-3 * (n + 1) / (at + 1), kld_low=None, kld_high=None)
        for at, name in enumerate(formats)
        for tensor in ("keys", "values")
        for n in range(LAYERS)
    )


def signs(errors: list[float | None]) -> tuple[LayerSigns, ...]:
    none = {"key_bias": None, "key_norm_gain": None, "key_outliers": 2.0}
    return tuple(LayerSigns(layer=n, score_error=error, at_risk=False, **none) for n, error in enumerate(errors))


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path / "store"))


def test_a_decision_is_there_by_the_hash_of_what_it_says(store: Store) -> None:
    decision = Decision(asked=DecisionRequest.of(memory="24GB"), advice=advice(), grounds=Grounds(scores=scored()))
    id = keep_decision(decision, store)
    assert stored_decision(id, store) == decision
    other = decision.model_copy(update={"asked": DecisionRequest.of(memory="48GB")})
    assert other.id != id


@pytest.mark.parametrize("held", [b"not json", b"{}", b'{"version": 999}', b'{"version": 1, "advice": 3}'])
def test_what_is_no_decision_is_refused_in_one_line(held: bytes, store: Store) -> None:
    write_beside(store, "decisions/abc.json", held)
    for id in ("abc", "0" * 16, "../secret"):
        with pytest.raises(StoreError, match="is not in this store") as caught:
            stored_decision(id, store)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "24000"}, "memory = '24000' is not allowed"),
        ({"memory": "24GB", "bits": 4.0}, "memory and bits are given"),
        ({"bits": "many"}, "bits = 'many' is not allowed"),
        ({"context": 1.5}, "context = 1.5 is not allowed"),
        ({"batch": 0}, "batch = 0 is not allowed"),
        ({"tolerance": "fine"}, "tolerance = 'fine' is not allowed"),
        ({"engine": "vlm"}, "engine = 'vlm' is not allowed"),
        ({"room": 1}, "Unknown field 'room'"),
    ],
)
def test_what_cannot_be_asked_is_one_line(given: dict, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        DecisionRequest.of(**given)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_sign_that_ranks_layers_as_their_keys_cost_is_found() -> None:
    found = predicts(Grounds(scores=scored(), signs=signs([0.1, 0.4, 0.5, 2.0, 3.0, 9.0])))
    assert {(each.sign, each.format) for each in found} == {("score_error", "q4_0"), ("score_error", "q8_0")}
    assert all(each.rho == pytest.approx(1.0) for each in found), "a sign that is the same everywhere ranks nothing"
    (against,) = predicts(Grounds(scores=scored(("q4_0",)), signs=signs([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])))
    assert against.rho == pytest.approx(-1.0)
    assert not predicts(Grounds(scores=scored(), signs=signs([0.1, 0.4, None, 2.0, 3.0, 9.0]))), "of all layers or none"


SHAPE = ModelShape(LAYERS, 1, 1, 64, 4096)


def costs_of(candidates: list[Candidate]) -> Costs:
    rng = np.random.default_rng(3)
    sizes = [each.layer_bytes("keys", SHAPE) for each in candidates]
    loss = rng.exponential(0.01, (2, LAYERS, 1)) * np.array([1 / size for size in sizes]) * sizes[0]
    plain = 2 * 64 * 1024
    nbytes = np.broadcast_to([*sizes, plain], (2, LAYERS, len(sizes) + 1))
    return Costs((*[each.name for each in candidates], "fp16"), np.dstack([loss, np.zeros((2, LAYERS))]), nbytes)


@pytest.mark.slow
def test_every_engine_has_a_front_that_the_free_one_is_never_behind() -> None:
    candidates = [Candidate.parse(name) for name in ("q4_0", "q8_0", "nvfp4", "fp8")]
    costs = costs_of(candidates)
    found = fronts(costs, candidates)
    assert [each.engine for each in found] == [None, "llama.cpp", "vLLM"]
    free, *engines = found
    for front in found:
        losses = [point.predicted for point in front.points]
        assert losses == sorted(losses, reverse=True) and len(set(losses)) == len(losses)
        assert all(point.bits == pytest.approx(16 * point.bytes / costs.budget(16.0)) for point in front.points)
    for front in engines:
        assert front.version and front.points
        for point in front.points:
            own = min((each.predicted for each in free.points if each.bytes <= point.bytes), default=math.inf)
            best = min(own, _free_at(costs, point.bytes, candidates))
            assert best <= point.predicted + 1e-9


def _free_at(costs: Costs, budget: int, candidates: list[Candidate]) -> float:
    from kvq_core.recommend.engine_limits import solve

    return solve(costs, budget, None, candidates).predicted


def test_the_report_has_the_grounds_where_they_are_at_hand() -> None:
    grounds = Grounds(scores=scored(), scored=6)
    for text in (as_html(advice(), grounds), as_markdown(advice(), grounds)):
        assert "The costliest layers alone, over 6 prompts" in text
        assert text.index("q4") < text.index("Not tested")
    page = as_html(advice(), grounds, "https://here")
    assert page.count("<rect") == page.count("<title>layer ") == len(grounds.scores), "a cell a score"
    assert "darkest" in page and f'href="https://here/{advice().worst[0].link}"' in page
    assert f"(https://here/{advice().worst[0].link})" in as_markdown(advice(), grounds, "https://here")
    assert "costliest" not in as_html(advice()) and "<rect" not in as_html(advice()) and "href" not in as_html(advice())
    assert (
        json.loads(Decision(asked=DecisionRequest(), advice=advice(), grounds=grounds).canonical)["grounds"]["scored"]
        == 6
    )
