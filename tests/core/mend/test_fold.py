"""Scales folded into projections: the model is the same function, for every kind that is not refused by name."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from benchmarks.architectures import CONFIGS, SAMPLE, ids_of, tiny_of
from kvq_core.errors import ModelError
from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import mendable_layers, row_factors
from kvq_core.models import LoadedModel, wrap
from kvq_core.models.pairs import Pairs
from tests.support.mended_models import apply_to
from tests.support.tiny_models import tiny

FOLD = (
    "cohere exaone4 gemma2 gemma3_text glm gpt_oss granite hunyuan_v1_dense laguna mimo_v2_flash mistral olmo2 olmoe "
    "phi phi3 qwen3 smollm3 stablelm"
)
REFUSED = {
    "bamba falcon_h1 jamba lfm2 qwen3_next": "keep a state",
    "gemma3n_text gemma4_text": "read the keys of others",
    "gpt_neox": "query_key_value",
    "llama4_text": "qk_norm",
    "nanochat": "no gains of the channels' number",
}
NOT_RUN = "deepseek_v3"
WHY = {kind: said for kinds, said in REFUSED.items() for kind in kinds.split()}
KINDS = sorted({*FOLD.split(), *WHY, *NOT_RUN.split()})


class _Doubles(TorchFunctionMode):
    """Within it nothing is computed in float32, as norms, softmax and RoPE of most models are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        args = tuple(torch.float64 if x is torch.float32 else x for x in args)
        told = {name: torch.float64 if x is torch.float32 else x for name, x in (kwargs or {}).items()}
        return func(*args, **told)


def in_float64(model: LoadedModel) -> LoadedModel:
    twin = deepcopy(model.model).double()
    torch.manual_seed(1)
    for name, parameter in twin.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    return wrap(twin, None, id="twin")


def random_edit(model: LoadedModel) -> Edit:
    shape, rope = model.shape, model.rope(2)
    edit = Edit.none(shape.layers, shape.kv_heads, shape.head_dim)
    for layer, own in mendable_layers(model).items():
        pairs = Pairs.of_rope(rope, layer)
        drawn = torch.randn(shape.kv_heads, len(pairs.theta)).exp()
        edit = edit.with_scales(layer, pairs.spread(drawn[:1].expand_as(drawn) if own.shared else drawn))
    return edit


@torch.no_grad()
def logits(model: LoadedModel) -> torch.Tensor:
    model.model.set_attn_implementation("eager")
    with suppress(AttributeError, ValueError):  # of kinds without experts
        model.model.set_experts_implementation("eager")  # the usual one takes no float64
    with _Doubles():
        return model.model(torch.tensor([ids_of(40)]), use_cache=False).logits[0]


@pytest.mark.few(sample=3)
@pytest.mark.parametrize("kind", KINDS)
def test_folding_preserves_the_function_or_is_refused_by_name(kind: str) -> None:
    if kind in NOT_RUN.split():
        with pytest.raises(ModelError, match="models are not supported"):
            tiny_of(kind)
        return
    model = tiny_of(kind)
    if kind in WHY:
        with pytest.raises(ModelError, match=f"{model.title} cannot be mended: .*{WHY[kind]}"):
            mendable_layers(model)
        return
    model = in_float64(model)
    before = logits(model)
    edit = random_edit(model)
    apply_to(model, edit)
    assert row_factors(model, edit)
    assert (logits(model) - before).abs().max() < 1e-10 * before.std()


def test_the_kinds_that_are_tried_are_those_of_the_engine_s_sample() -> None:
    assert set(SAMPLE) <= set(KINDS) <= CONFIGS.keys()


@pytest.mark.slow
def test_a_scale_that_is_not_the_same_for_a_pair_changes_the_function() -> None:
    model = in_float64(tiny("qwen2"))
    before = logits(model)
    shape = model.shape
    edit = Edit.none(shape.layers, shape.kv_heads, shape.head_dim)
    apply_to(model, edit.with_scales(0, torch.linspace(0.5, 2, shape.head_dim).expand(shape.kv_heads, -1)))
    assert (logits(model) - before).abs().max() > 1e-3 * before.std()


def test_pairs_are_those_that_rope_turns() -> None:
    halves, neighbours, partial = (Pairs.of_rope(tiny_of(kind).rope(2), 0) for kind in ("llama", "cohere", "stablelm"))
    assert halves.members(3) == [3, 19] and neighbours.members(3) == [6, 7]
    assert partial.theta.count_nonzero() == 4 and len(partial.theta) == 28
    angles = 10000.0 ** (-torch.arange(16) / 16)
    assert torch.allclose(halves.theta, angles, rtol=1e-3)


def test_an_edit_of_no_head_changes_no_parameter() -> None:
    shape = tiny("qwen2").shape
    assert row_factors(tiny("qwen2"), Edit.none(shape.layers, shape.kv_heads, shape.head_dim)) == {}
