"""Every method on every supported architecture: short, odd and long prompts, full and half precision."""

from collections.abc import Iterator

import pytest
import torch

from kvq_core.codebooks.encoder import to_stored
from kvq_core.codebooks.files import CodebookInfo, save_codebook
from kvq_core.methods import methods
from kvq_core.spec import Lane
from kvq_core.training.values import start
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

MODELS = ["llama", "qwen2", "qwen3", "mistral"]
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
]  # eight, as many as a comparison may have
MORE = [
    Lane(label="token", method="per_token", knobs=SMALL),
    Lane(label="channel", method="per_channel", knobs=SMALL),
    Lane(label="asymmetric", method="innerq", knobs={**INNER, "mode": "asymmetric", "zero_point": "float16"}),
    Lane(label="prefill", method="innerq", knobs={**INNER, "mode": "hybrid_prefill", "normalize_keys": "off"}),
    Lane(label="target", method="svdq", knobs={"target_bits": 2.5, "per_head": True}),
    Lane(label="once", method="qaq", knobs={"update": "once", "unit": "layer"}),
    Lane(label="commvq", method="commvq", knobs={"levels": 4, "window": 16}),
    Lane(label="floor", method="fp16"),
]

SELECTION = [
    Lane(label="h2o", method="h2o"),
    Lane(label="scissorhands", method="scissorhands", knobs={"heavy": 0.3, "recent": 0.2}),
    Lane(label="shadowkv", method="shadowkv", knobs={**SPARSE, "rank": 24}),
    Lane(label="shadowkv as it is", method="shadowkv"),
    *(
        Lane(label=f"by {by}", method="kivi", knobs=SMALL, select={"by": by})
        for by in ("h2o", "scissorhands", "shadowkv", "svdq")
    ),
]


def test_no_method_is_left_out() -> None:
    assert {lane.method for lane in LANES + MORE + SELECTION} == set(methods())


@pytest.fixture(scope="module", autouse=True)
def untrained_codebooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A 1-bit set for each model, with random levels and encoders: what they are worth is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVQ_HOME", str(tmp_path_factory.mktemp("home")))
        for name in MODELS:
            shape, g = tiny(name).shape, torch.Generator().manual_seed(1)
            common = {
                "model": f"tiny-{name}",
                "weights_hash": tiny(name).weights_hash,
                "layers": shape.layers,
                "kv_heads": shape.kv_heads,
                "head_dim": shape.head_dim,
                "bits": 1,
                "settings": {},
                "digest": "d",
                "source": "none",
                "train_tokens": 0,
                "held_out_tokens": 0,
                "train_error": [],
                "held_out_error": [],
                "seconds": 0,
                "created": "",
                "command": "",
            }
            pairs = shape.head_dim // 2
            levels = 0.1 * torch.randn(shape.layers, shape.kv_heads, 1, pairs // 2, 4, pairs, 2, generator=g)
            stages = {"levels": 4, "pairs_per_group": pairs, "stages": pairs // 2}
            save_codebook(CodebookInfo(kind="keys", **stages, **common), {"theta": levels.half()})
            values = torch.randn(shape.layers, 1, 64, shape.kv_heads * shape.head_dim, generator=g)
            encoders = [to_stored(start(layer, 1, g)) for layer in values]
            joined = {tensor: torch.cat([e[tensor] for e in encoders]) for tensor in encoders[0]}
            save_codebook(CodebookInfo(kind="values", **common), joined)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [LANES, MORE, SELECTION], ids=["papers", "variants", "selection"])
@pytest.mark.parametrize(
    ("count", "dtype"),
    [(5, torch.float32), (43, torch.float32), (43, torch.bfloat16), (96, torch.bfloat16)],
    ids=["5-fp32", "43-fp32", "43-bf16", "96-bf16"],
)
@pytest.mark.parametrize("name", MODELS)
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
