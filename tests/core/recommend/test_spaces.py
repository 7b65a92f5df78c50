"""Policies as lanes, and as flags that are read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape
from kvq_core.recommend.engine_flags import policy_of_flags
from kvq_core.recommend.engine_limits import SPACES, flags
from kvq_core.recommend.layer_plans import FP16, Candidate, LayerPlan
from kvq_core.spec import TENSORS, parse_lane

LAYERS = 6
SHAPE = ModelShape(LAYERS, 4, 2, 64, 2048)
CANDIDATES = {
    "vllm": [Candidate.parse(name) for name in ("fp8", "int4_per_token_head", "turboquant:boundary_layers=2")],
    "llama.cpp": [Candidate.parse(name) for name in ("q8_0", "q4_0", "iq4_nl")],
    "ik_llama.cpp": [Candidate.parse(name) for name in ("q8_0:rotate=false", "q4_0:rotate=false")],
}


@st.composite
def policies(draw: st.DrawFn, engine: str) -> LayerPlan:
    """A policy of the engine's space."""
    names = [each.name for each in CANDIDATES[engine]]
    if engine == "vllm":
        name = draw(st.sampled_from(names))
        own = tuple(draw(st.lists(st.sampled_from([name, FP16]), min_size=LAYERS, max_size=LAYERS)))
        return LayerPlan(own, own)
    return LayerPlan(*(draw(runs([*names, FP16], 3 if engine == "ik_llama.cpp" else 1)) for _ in TENSORS))


@st.composite
def runs(draw: st.DrawFn, names: list[str], most: int) -> tuple[str, ...]:
    """Formats by layer, in so many runs at most."""
    ends = sorted(draw(st.lists(st.integers(0, LAYERS), min_size=most - 1, max_size=most - 1)))
    lengths = [b - a for a, b in zip([0, *ends], [*ends, LAYERS], strict=True)]
    return tuple(name for n in lengths for name in (draw(st.sampled_from(names)),) * n)


@pytest.mark.parametrize("engine", SPACES)
@given(data=st.data())
def test_flags_say_the_policy_that_made_them(engine: str, data: st.DataObject) -> None:
    plan = data.draw(policies(engine))
    command = flags(engine, plan, CANDIDATES[engine])
    read = policy_of_flags(SPACES[engine], command, CANDIDATES[engine], LAYERS)
    assert read == plan, command
    assert read.lane(CANDIDATES[engine]) == plan.lane(CANDIDATES[engine])


@given(data=st.data())
def test_a_lane_stores_what_its_policy_says(data: st.DataObject) -> None:
    """Through JSON, as it is exported."""
    candidates = CANDIDATES["llama.cpp"]
    names = st.sampled_from([*(each.name for each in candidates), FP16])
    plan = LayerPlan(*(tuple(data.draw(st.lists(names, min_size=LAYERS, max_size=LAYERS))) for _ in TENSORS))
    lane = parse_lane(plan.lane(candidates).model_dump(mode="json", exclude_defaults=True))
    stored = {(a.tensor, layer): a.method.name for a in lane.plan(SHAPE) for layer in a.layers if a.method.quantizes}
    assert stored == {
        (tensor, layer): name for tensor in TENSORS for layer, name in enumerate(plan.of(tensor)) if name != FP16
    }
    assert lane.why_not(SHAPE) is None


def test_commands_are_those_that_engines_take() -> None:
    plan = LayerPlan(*[("fp8", FP16, "fp8", "fp8", FP16, "fp8")] * 2)
    assert flags("vllm", plan, CANDIDATES["vllm"]) == (
        "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 1 4"
    )
    q8, q4 = (each.name for each in CANDIDATES["ik_llama.cpp"])
    ends = LayerPlan((FP16, q8, q8, q8, q8, q4), (q4,) * 6)
    assert flags("ik_llama.cpp", ends, CANDIDATES["ik_llama.cpp"]) == (
        "ik_llama.cpp/build/bin/llama-server -m M.gguf -fa on -ctk q8_0 -ctv q4_0 -ctk-first f16,1 -ctk-last q4_0,1"
    )


@pytest.mark.parametrize("given_", ["q4_0:bits", "q4_0:", "nothing", "q4_0:bits=7"])
def test_a_candidate_that_cannot_be_is_refused(given_: str) -> None:
    if given_ == "q4_0:":
        assert Candidate.parse(given_).method == Candidate.parse("q4_0").method
        return
    with pytest.raises(SpecError):
        Candidate.parse(given_)


def test_layers_one_at_a_time_are_not_for_every_method() -> None:
    assert "boundary_layers=0" in (Candidate.parse("turboquant").why_not(SHAPE) or "")
    assert Candidate.parse("turboquant:boundary_layers=0").why_not(SHAPE) is None
    assert "fp16 is allowed anyway" in (Candidate.parse("fp16").why_not(SHAPE) or "")
    assert "against one another" in (Candidate.parse("qaq").why_not(SHAPE) or "")


def test_flags_of_another_engine_are_refused() -> None:
    with pytest.raises(SpecError, match="vLLM has no format 'q4_0'"):
        policy_of_flags("vLLM", "vllm serve M --kv-cache-dtype q4_0", CANDIDATES["vllm"], LAYERS)
