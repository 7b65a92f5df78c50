"""Packed layers of baselines whose stores change while tokens are generated: the engine's lane, step by step."""

import pytest
import torch

from kvq_core.spec import Lane
from tests.core.packed.test_packed_methods import ATOL, forced_logits
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

CASES = {
    "uniform apart": ("uniform", {"group_size": 16, "outlier_fraction": 0.05}, {}),
    "gear in blocks": ("gear", {"group_size": 4, "rank": 2}, {"sink_tokens": 3}),
    "gear-l": ("gear", {"group_size": 8, "outlier_fraction": 0}, {}),
    "zipcache ranked": ("zipcache", {"streaming_gap": 3}, {"sink_tokens": 2}),
    "zipcache values": ("zipcache", {"streaming_gap": 1, "salient_fraction": 0.4}, {"tensors": "values"}),
    "kvquant clipped": ("kvquant", {"bits": 3, "outlier_fraction": 0}, {}),
    "kvquant apart": ("kvquant", {"outlier_fraction": 0.1}, {"sink_tokens": 4, "recent_tokens": 6}),
    "rvq small": ("rvq", {"entries": 16, "steps": 3}, {"recent_tokens": 5}),
    "think at 4 bits": ("think", {"pruned": 0.25, "bits": 4}, {}),
}


@pytest.mark.slow
@pytest.mark.few(sample=3)
@pytest.mark.parametrize("case", list(CASES))
def test_a_packed_run_is_the_lane_byte_for_byte(case):
    method, knobs, options = CASES[case]
    model, ids = tiny("qwen3"), prompt_ids(61)
    lane = Lane(label=case, method=method, knobs=knobs, **options)
    outcome = run_engine(model, ids, [lane], 10, ignore_eos=True)
    state = outcome.state(case)
    assert state.error is None
    logits, layers = forced_logits(model, ids, lane, outcome.decode.token_ids[:-1])
    torch.testing.assert_close(logits, outcome.logits()[1][0], rtol=0, atol=ATOL)
    assert sum(layer.nbytes for layer in layers) == sum(sum(p.stream.nbytes().values()) for p in state.cache.parts)
    assert not sum(layer.host_bytes for layer in layers)
