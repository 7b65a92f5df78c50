"""Every method on every supported architecture: short, odd and long prompts, full and half precision."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from kvq_core.codebooks.encoder import to_stored
from kvq_core.codebooks.files import CodebookInfo, save_codebook
from kvq_core.methods import Prompt, methods
from kvq_core.spec import Lane
from kvq_core.training.values import start
from tests.support.campaigns import pairs
from tests.support.engine_runs import run_engine
from tests.support.every_lane import EVERY
from tests.support.tiny_models import prompt_ids, tiny

ALONE = [lane for lanes in EVERY.values() for lane in lanes if lane.select is None]
MODELS = ["llama", "qwen2", "qwen3", "mistral"]


def test_no_method_is_left_out() -> None:
    assert {lane.method for lanes in EVERY.values() for lane in lanes} == set(methods())


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


@pytest.mark.parametrize("lane", ALONE, ids=lambda lane: lane.label)
def test_a_layer_s_tokens_read_ahead_are_those_it_will_hold(lane: Lane) -> None:
    """Of methods whose codes are a token's alone; layers differ in size, as what is fitted on them then does."""
    method = lane.build()
    learned = method.name == "commvq"  # of a model
    model, dim = (tiny("llama").ref, 32) if learned else (None, 64)
    g = torch.Generator().manual_seed(3)
    sizes = torch.tensor([0.1, 1.0, 20.0]).view(3, 1, 1, 1)
    keys, values, queries = (sizes * torch.randn(3, heads, 24, dim, generator=g) for heads in (2, 2, 4))
    fitted = method.fit(Prompt(keys, values, queries, model=model, layers=(0, 1, 2), rotated=keys))
    for codec, local, x in zip((fitted.key, fitted.value), method.token_local, (keys, values), strict=True):
        if codec is None or not local:
            continue
        whole = codec.decode(codec.encode(x, 0))
        for layer in range(3):
            torch.testing.assert_close(codec.preview(x[layer : layer + 1], layer, 0)[0], whole[layer])


PROMPTS = [(5, torch.float32), (43, torch.float32), (43, torch.bfloat16), (96, torch.bfloat16)]


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize(
    ("name", "group", "count", "dtype"), [(*one, *prompt) for one, prompt in pairs(product(MODELS, EVERY), PROMPTS)]
)
def test_methods_run_and_their_stores_decode_to_what_is_read(
    name: str, group: str, count: int, dtype: torch.dtype
) -> None:
    lanes = EVERY[group]
    outcome = run_engine(tiny(name, dtype), prompt_ids(count), lanes, 6, audit=True, ignore_eos=True)
    assert [(s.lane.label, s.error) for s in outcome.decode.states if s.error] == []
    assert torch.isfinite(outcome.logits()[1]).all()
    held = count + 5
    for state in outcome.decode.states:
        assert state.cache is not None and all(part.stream.tokens == held for part in state.cache.parts)
        for part in state.cache.parts:
            sizes = part.stream.nbytes()
            assert sizes and all(size > 0 for size in sizes.values())
