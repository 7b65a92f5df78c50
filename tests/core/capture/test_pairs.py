"""Keys by RoPE pair against the weights and what the key projection put out."""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.architectures import ids_of, tiny_of
from kvq_core.capture.pairs import key_pairs
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.models import LoadedModel
from kvq_core.models.pairs import pairs_of
from kvq_core.models.rope import Rope
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.arrays import ARRAYS
from kvq_core.record.events import Finished
from kvq_core.spec import ComparisonSpec, Lane
from tests.support.reading_models import Letters
from tests.support.tiny_models import prompt_ids, tiny


def captured(model: LoadedModel, ids: list[int], rope: Rope | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """The arrays, and what layer 1's key projection put out: (kv_heads, tokens, head_dim)."""
    shape, outputs = model.shape, []
    projection = model.model.model.layers[1].self_attn.k_proj
    hook = projection.register_forward_hook(lambda m, i, out: outputs.append(out[0].detach()))
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    hook.remove()
    keys = torch.cat(outputs).unflatten(-1, (shape.kv_heads, -1)).transpose(0, 1).double()
    groups = [of for group in prefill.groups if (of := group.of(group.captured)) is not None]
    return key_pairs(groups, rope or model.rope(len(ids)), shape.layers), keys


def norms(x: Tensor, members: list[list[int]]) -> Tensor:
    return torch.stack([x[..., own].square().sum(-1) for own in members], -1).sqrt()


def check(found: dict[str, Tensor], keys: Tensor, members: list[list[int]]) -> None:
    of = found["pairs/of"][1].tolist()
    assert [[i for i, pair in enumerate(of) if pair == each] for each in range(max(of) + 1)] == members
    mean = keys.mean(1)
    spread = norms(keys - mean[:, None], members).square().mean(1).sqrt()
    for name, expected in (("key_mean", norms(mean, members)), ("key_spread", spread)):
        torch.testing.assert_close(found[f"pairs/{name}"][1].double(), expected, rtol=1e-4, atol=1e-6)


class Spoken(Letters):
    def decode(self, ids: list[int] | int, **_: bool) -> str:
        return super().decode([ids] if isinstance(ids, int) else ids)

    def convert_ids_to_tokens(self, ids: list[int] | int) -> list[str] | str:
        return self.decode(ids) if isinstance(ids, int) else [self.decode(id) for id in ids]


HALVES = [[i, i + 16] for i in range(16)]


def test_halves_with_a_bias() -> None:
    model = tiny("qwen2")
    found, keys = captured(model, prompt_ids(50))
    assert found.keys() <= ARRAYS.keys() and found["pairs/of"].dtype == torch.int16
    check(found, keys, HALVES)
    for layer in range(3):
        bias = model.model.model.layers[layer].self_attn.k_proj.bias.detach().double().view(2, 32)
        torch.testing.assert_close(found["pairs/key_bias"][layer].double(), norms(bias, HALVES), rtol=1e-5, atol=0)
        theta = 10000.0 ** (-torch.arange(16) / 16)
        torch.testing.assert_close(found["pairs/theta"][layer], theta, rtol=1e-3, atol=0)


def test_without_a_bias_there_is_none() -> None:
    found, keys = captured(tiny("llama"), prompt_ids(50))
    check(found, keys, HALVES)
    assert "pairs/key_bias" not in found


def test_neighbours_are_pairs_where_rope_turns_neighbours() -> None:
    found, keys = captured(tiny_of("cohere"), ids_of(30))
    check(found, keys, [[i, i + 1] for i in range(0, keys.shape[-1], 2)])


def test_channels_that_are_not_turned_are_their_own_pairs() -> None:
    found, keys = captured(tiny_of("stablelm"), ids_of(30))
    turned = [[i, i + 4] for i in range(4)]
    check(found, keys, [*turned, *([i] for i in range(8, keys.shape[-1]))])
    assert (found["pairs/theta"][1][4:] == 0).all() and (found["pairs/theta"][1][:4] > 0).all()


def test_layers_of_unknown_rotation_have_none_and_those_without_rope_do_not_turn() -> None:
    model, ids = tiny("qwen2"), prompt_ids(30)
    found, _ = captured(model, ids, replace(model.rope(30), rotations=("rope", "unknown", "none")))
    of, theta = found["pairs/of"], found["pairs/theta"]
    assert (of[1] == -1).all() and of[2].tolist() == list(range(32)) and (theta[1:] == 0).all()
    assert (found["pairs/key_mean"][1] == 0).all() and found["pairs/key_mean"].shape == (3, 2, 32)
    assert of[0].max() == 15 and (found["pairs/key_mean"][0, :, 16:] == 0).all()
    lost, _ = captured(model, ids, replace(model.rope(30), rotations=("unknown",) * 3))
    assert (lost["pairs/of"] == -1).all() and not any(x.any() for name, x in lost.items() if name != "pairs/of")


def test_what_a_pair_errs_does_not_depend_on_the_turn() -> None:
    rope, error = tiny("qwen2").rope(40), torch.randn(3, 2, 40, 32)
    [pairs] = pairs_of(rope, [1])
    torch.testing.assert_close(pairs.sums(rope.rotate(error, 0).square()), pairs.sums(error.square()))


def test_a_run_keeps_them() -> None:
    model, lane = replace(tiny("qwen2"), tokenizer=Spoken()), Lane(label="q4_0", method="q4_0")
    spec = ComparisonSpec(prompt="a prompt of some letters", chat=False, max_new_tokens=4, lanes=(lane,))
    [done] = [event for event in compare_on(model, spec) if isinstance(event, Finished)]
    kept = {name for name in done.arrays if name.startswith("pairs/")}
    assert kept == {name for name in ARRAYS if name.startswith("pairs/")}
    assert done.arrays["lane/0/key_channel_error"].shape[-1] == done.arrays["pairs/of"].shape[-1]
