"""How the operations of a step are divided among the cores."""

import pytest
import torch

from kvq_core.engine.divided import divided, sharing
from kvq_core.models.lockstep import ATTENTION
from tests.tiny_models import CONFIGS, prompt_ids, tiny


def patched(model: torch.nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_divided_model_answers_as_the_whole_one(name, monkeypatch) -> None:
    model, product, widths = tiny(name).model, torch.nn.functional.linear, []
    ids = torch.tensor([prompt_ids(5), prompt_ids(5, seed=1)])

    def noted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        widths.append(len(weight))
        return product(x, weight)

    monkeypatch.setattr("kvq_core.engine.divided.linear", noted)
    model.set_attn_implementation("sdpa")
    try:
        with torch.no_grad():
            whole = model(ids).logits
            assert not widths
            with divided(sharing(model, 3)):
                assert len(patched(model)) == 1 + 3  # the head and each layer's MLP
                parts = model(ids).logits
    finally:
        model.set_attn_implementation(ATTENTION)
    assert sorted(widths) == 3 * 3 * 2 * [32] + [32, 32, 32] and not patched(model)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_what_is_not_known_is_left_whole() -> None:
    model = tiny("llama").model
    with divided(sharing(model, 1)):
        assert not patched(model)
    mlp = model.model.layers[1].mlp
    mlp.up_proj.bias = torch.nn.Parameter(torch.zeros(96))
    try:
        with divided(sharing(model, 2)):
            assert len(patched(model)) == 1 + 2
    finally:
        mlp.up_proj.bias = None
    other = torch.nn.Module()
    other.get_output_embeddings = lambda: None  # type: ignore[assignment]
    other.mlp = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
    with divided(sharing(other, 2)):
        assert not patched(other)
