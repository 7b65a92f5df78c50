"""Lanes that read chosen keys, packed: the engine's forced row, whatever stores the keys."""

import pytest
import torch

from kvq_core.packed import MeasureRequest, measure
from kvq_core.packed.cache import lane_layers
from kvq_core.packed.dense import DenseLayer
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

ATOL = 5e-4
H2O = {"by": "h2o", "heavy": 0.2, "recent": 0.1}
CHUNKS = {"by": "shadowkv", "chunk_size": 8, "budget_tokens": 24, "outlier_chunks": 2, "local_chunks": 2}
SMALL = {"group_size": 8, "residual_length": 8}
CASES = {
    "fp16": {"method": "h2o", "knobs": {"heavy": 0.2, "recent": 0.2}},
    "counts": {"method": "scissorhands"},
    "fused otherwise": {"method": "kivi", "knobs": SMALL, "select": H2O},
    "before RoPE": {"method": "squat", "knobs": {**SMALL, "block_size": 8, "rope": "pre"}, "select": CHUNKS},
    "over all layers": {"method": "svdq", "knobs": {"target_bits": 2.5}, "select": {**H2O, "by": "scissorhands"}},
    "re-encoded": {"method": "qaq", "select": H2O},
    "some layers": {"method": "per_token", "knobs": {"residual_length": 0}, "layers": [1], "select": H2O},
    "values alone": {"method": "per_token", "knobs": {"bits": 8}, "tensors": "values", "select": CHUNKS},
    "rules": {"rules": [{"method": "h2o", "layers": [0]}, {"method": "kivi", "knobs": SMALL}]},
    "shadowkv": {"method": "shadowkv", "knobs": {"rank": 24, "budget_tokens": 24, "outlier_chunks": 2}},
}


@pytest.mark.few(sample=3)
@pytest.mark.parametrize("case", list(CASES))
def test_a_packed_run_is_the_engines_forced_row(case: str) -> None:
    model, ids = tiny("llama"), prompt_ids(110)
    lane = Lane.model_validate({"label": case, **CASES[case]})
    outcome = run_engine(model, ids, [lane], 10, ignore_eos=True)
    state = outcome.state(case)
    assert state.error is None and state.cache is not None
    layers = lane_layers(lane, model.model, "auto", 0, model.ref, model.rotations)
    model.forward(torch.tensor([ids]), 0, lambda at, *given: layers[at].attend(*given))
    found = [
        model.forward(torch.tensor([[token]]), at, lambda at, *given: layers[at].attend(*given))[0]
        for at, token in enumerate(outcome.decode.token_ids[:-1], len(ids))
    ]
    torch.testing.assert_close(torch.cat(found), outcome.logits()[1][0], rtol=0, atol=ATOL)
    stored = sum(sum(part.stream.nbytes().values()) for part in state.cache.parts)
    assert 0 <= sum(layer.nbytes for layer in layers) - stored <= 2 * len(layers)


def test_only_layers_that_choose_or_are_packed_are_held_so() -> None:
    model = tiny("llama")
    lane = Lane.model_validate({"rules": [{"method": "h2o", "layers": [2]}, {"method": "kivi", "layers": [0]}]})
    layers = lane_layers(lane, model.model, "auto", 0, model.ref, model.rotations)
    assert [isinstance(layer, DenseLayer) for layer in layers] == [False, True, False]


@pytest.mark.slow
def test_rows_of_a_batch_drop_tokens_of_their_own() -> None:
    model, lane = tiny("llama"), Lane.model_validate(CASES["fused otherwise"])
    prompts = torch.tensor([prompt_ids(90, seed) for seed in (1, 2)])
    more = torch.tensor([prompt_ids(24, seed) for seed in (3, 4)])

    def logits(prompt: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        layers = lane_layers(lane, model.model, "auto", 0, model.ref, model.rotations)
        pieces = [(prompt, 0), (text[:, :20], 90), (text[:, 20:22], 110), (text[:, 22:], 112)]
        found = [model.forward(ids, at, lambda n, *given: layers[n].attend(*given)) for ids, at in pieces]
        return torch.cat(found[1:], 1)

    both = logits(prompts, more)
    for row in range(2):
        alone = logits(prompts[row : row + 1], more[row : row + 1])
        torch.testing.assert_close(both[row : row + 1], alone, rtol=0, atol=ATOL)


def test_measure_takes_them() -> None:
    found = measure(tiny("llama"), Lane.model_validate(CASES["fp16"]), prompt_ids(60), MeasureRequest(new_tokens=4))
    assert found.method == "h2o" and len(found.token_ids) == 4
