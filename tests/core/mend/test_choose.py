"""What is chosen: constants in slow pairs are left out, those in fast pairs are not, and nothing that does not help."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor

from kvq_core.engine.divergence import kl_divergence
from kvq_core.errors import SpecError
from kvq_core.mend.choose import Choosing, Chosen
from kvq_core.mend.edit import Edit
from kvq_core.mend.formats import CacheFormat
from kvq_core.mend.passes import ReferencePass, read_through, score
from kvq_core.mend.weigh import bias_costs
from kvq_core.models import LoadedModel, wrap
from kvq_core.models.pairs import Pairs
from tests.support.mended_models import apply_to
from tests.support.tiny_models import prompt_ids, tiny

SCORED, TOKENS = 24, 160
SLOW, FAST = slice(11, 16), slice(0, 3)  # pairs of 16; theta 1e7 ** (-pair / 16)


@cache
def twin(where: str) -> LoadedModel:
    """A tiny Qwen2 with constants of many times its keys in some pairs, the others' biases 0."""
    model = deepcopy(tiny("qwen2").model)
    model.config.rope_parameters["rope_theta"] = 1e7
    model = type(model)(model.config).eval()
    model.load_state_dict(tiny("qwen2").model.state_dict())
    with torch.no_grad():
        for layer in model.model.layers:
            bias = layer.self_attn.k_proj.bias.view(2, 2, 16)
            bias.zero_()
            if where != "none":
                bias[:, 0, SLOW if where == "slow" else FAST] = 40.0
    return wrap(model, None, id=where)


@torch.no_grad()
def chosen(model: LoadedModel, form: str = "q4_0", only: str | None = None, allow: float = 0.01) -> Chosen:
    short = [ReferencePass.of(model, prompt_ids(TOKENS, seed), [TOKENS], SCORED)[0] for seed in range(3)]
    long = ReferencePass.of(model, prompt_ids(320, 9), [160, 320], SCORED)
    return Choosing(model, CacheFormat.of(form), short, long, allow, lambda *told: None, only).choose()


@torch.no_grad()
def deployed(model: LoadedModel, edit: Edit | None, form: str | None) -> float:
    made = None if form is None else CacheFormat.of(form)
    found = []
    for seed in (20, 21):
        ids = prompt_ids(TOKENS, seed)
        found.append(
            score(read_through(model, ids, SCORED, None, None), read_through(model, ids, SCORED, edit, made)).mean
        )
    return sum(found) / len(found)


@pytest.mark.slow
def test_constants_in_slow_pairs_are_left_out_and_that_helps() -> None:
    model = twin("slow")
    found = chosen(model, only="biases")
    pairs = {pair for each in found.edit.biases(found.pairs) for pair in each["pairs"]}
    assert {13, 14, 15} <= pairs and not pairs & {0, 1, 2}
    assert deployed(model, found.edit, "q4_0") < deployed(model, None, "q4_0") / 4
    assert deployed(model, found.edit, None) < 0.01
    assert all(each < 0.01 for each in found.full_precision.values())


@pytest.mark.slow
def test_constants_in_fast_pairs_are_not_left_out() -> None:
    model = twin("fast")
    found = chosen(model, only="biases")
    kept = found.edit.keep.view(-1, 2, 16)[:, 0, FAST]
    assert kept.min() == 1


@pytest.mark.slow
def test_the_same_is_chosen_twice_and_folding_helps_where_pairs_differ() -> None:
    model = twin("fast")
    one, two = (chosen(model, only="folded") for _ in range(2))
    assert torch.equal(one.edit.scale, two.edit.scale) and one.edit.folds and one.gains
    assert not one.edit.drops
    assert one.after < one.before / 1.5 and deployed(model, one.edit, "q4_0") < deployed(model, None, "q4_0") / 1.25
    assert deployed(model, one.edit, None) < 1e-8


@pytest.mark.slow
def test_what_is_simulated_is_what_changed_weights_compute() -> None:
    """Against transformers' own loop on a copy whose weights are changed, in full precision."""
    model = twin("slow")
    edit = chosen(model).edit
    own = wrap(deepcopy(model.model), None, id="changed")
    apply_to(own, edit)
    ids = prompt_ids(TOKENS, 30)
    with torch.no_grad():
        told = read_through(model, ids, SCORED, edit, None)
        own.model.set_attn_implementation("eager")
        plain = own.model(torch.tensor([ids]), use_cache=False).logits[0, -SCORED - 1 : -1].log_softmax(-1)
    assert kl_divergence(plain, told).max() < 1e-6


def by_hand(model: LoadedModel, reference: ReferencePass, pairs: Pairs, dropped: list[int]) -> Tensor:
    """The variance that leaving out pairs adds to scores of layer 0, head by head, in plain loops over queries."""
    bias = model.key_bias[0].clone()
    bias[:, [channel for channel in range(32) if int(pairs.of[channel]) not in dropped]] = 0
    turned = model.rope(TOKENS).on([0]).rotate(bias[None, :, None].expand(-1, -1, TOKENS, -1).contiguous(), 0)[0]
    found = torch.zeros(2)
    for head in range(4):
        for at in range(SCORED):
            query, seen = reference.queries[0][head, at], TOKENS - SCORED + at + 1
            weights = (reference.keys[0][head // 2, :seen] @ query * 32**-0.5).softmax(0)
            moved = turned[head // 2, :seen] @ query * 32**-0.5
            found[head // 2] += (weights * (moved - weights @ moved).square()).sum() / (2 * SCORED)
    return found


@pytest.mark.slow
def test_what_biases_cost_is_the_variance_of_what_they_add_to_scores() -> None:
    model = twin("slow")
    [reference] = ReferencePass.of(model, prompt_ids(TOKENS, 3), [TOKENS], SCORED)
    pairs = Pairs.of_rope(model.rope(2), 0)
    costs = bias_costs(model, reference, 0, pairs)
    assert costs.order[:5] == [15, 14, 13, 12, 11]
    for count in (1, 3, 5):
        wanted = by_hand(model, reference, pairs, costs.order[:count])
        assert torch.allclose(costs.variance[2 * count], wanted, rtol=1e-2, atol=1e-6)
    assert costs.keep(5, pairs)[[15, 14, 13, 12]].tolist() == [0, 0, 0.5, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("kivi", "nothing to gain"),
        ("f16", "nothing to gain"),
        ("q9_9", "is no format"),
        ("per_token", "store every token"),
    ],
)
def test_formats_with_nothing_to_gain_are_refused(words: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        CacheFormat.of(words)
