"""Every method on every supported architecture: short, odd and long prompts, full and half precision."""

import pytest
import torch

from kvq_core.methods import methods
from kvq_core.spec import Lane
from tests.engine_runs import run_engine
from tests.tiny_models import prompt_ids, tiny

SMALL = {"group_size": 8, "residual_length": 8}
INNER = {"group_size": 8, "sink_tokens": 4, "recent_tokens": 8}
SPARSE = {"chunk_size": 8, "budget_tokens": 16, "outlier_chunks": 1, "local_chunks": 1}
LANES = [
    Lane(label="kivi", method="kivi", knobs=SMALL),
    Lane(label="squat", method="squat", knobs={**SMALL, "block_size": 8}),
    Lane(label="squat pre", method="squat", knobs={**SMALL, "rope": "pre"}),
    Lane(label="hybrid", method="innerq", knobs=INNER),
    Lane(label="folded", method="innerq", knobs={**INNER, "mode": "symmetric", "normalize_keys": "folded"}),
    Lane(label="svdq", method="svdq", knobs={"value_bits": 4}),
    Lane(label="sparse", method="svdq", knobs={"sparsity": SPARSE}),
    Lane(label="qaq", method="qaq"),
]
MORE = [
    Lane(label="token", method="per_token", knobs=SMALL),
    Lane(label="channel", method="per_channel", knobs=SMALL),
    Lane(label="asymmetric", method="innerq", knobs={**INNER, "mode": "asymmetric", "zero_point": "float16"}),
    Lane(label="prefill", method="innerq", knobs={**INNER, "mode": "hybrid_prefill", "normalize_keys": "off"}),
    Lane(label="target", method="svdq", knobs={"target_bits": 2.5, "per_head": True}),
    Lane(label="once", method="qaq", knobs={"update": "once", "unit": "layer"}),
    Lane(label="floor", method="fp16"),
]


def test_no_method_is_left_out() -> None:
    """CommVQ needs codebooks of the model it runs on; its own tests cover it."""
    assert {lane.method for lane in LANES + MORE} == set(methods()) - {"commvq"}


@pytest.mark.parametrize("lanes", [LANES, MORE], ids=["papers", "variants"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("count", [5, 43, 96])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_methods_run_and_their_stores_decode_to_what_is_read(
    name: str, count: int, dtype: torch.dtype, lanes: list[Lane]
) -> None:
    outcome = run_engine(tiny(name, dtype), prompt_ids(count), lanes, 6, audit=True, ignore_eos=True)
    assert [(s.lane.label, s.error) for s in outcome.decode.states if s.error] == []
    assert torch.isfinite(outcome.logits()[1]).all()
    held = count + 5
    for state in outcome.decode.states:
        assert state.cache is not None and all(part.stream.tokens == held for part in state.cache.parts)
        for part in state.cache.parts:
            sizes = part.stream.nbytes()
            assert sizes and all(size > 0 for size in sizes.values())
