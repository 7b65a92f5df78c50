"""Products of decode steps: shared among the cores, and read in a layout made for few rows."""

import gc
import weakref

import pytest
import torch
from torch.nn.functional import linear

from kvq_core.machine.memory import give_back_spare
from kvq_core.machine.threads import one_thread
from kvq_core.models import load
from kvq_core.models import stepping as products
from kvq_core.models.lockstep import ATTENTION
from kvq_core.models.stepping import (
    DividedHead,
    DividedMLP,
    Matrix,
    StepModels,
    laid_out_bytes,
    laid_out_linear,
    step_model,
)
from kvq_core.spec import DEFAULT_MODEL
from tests.support.tiny_models import CONFIGS, prompt_ids, tiny


def count(model: torch.nn.Module, *kinds: type) -> int:
    return sum(isinstance(module, kinds) for module in model.modules())


@pytest.mark.parametrize("laid_out", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_answers_in_steps_as_the_whole_one(name, laid_out) -> None:
    model = tiny(name).model
    ids = torch.tensor([prompt_ids(5), prompt_ids(5, seed=1)])
    held = {id(weight): weight.clone() for weight in model.parameters()}
    steps = step_model(model, 3, laid_out)
    assert count(steps, DividedHead, DividedMLP) == 1 + 3  # the head and each layer's MLP
    assert count(steps, Matrix) == (3 * 4 if laid_out else 0)  # and the projections of each attention
    assert not count(model, DividedHead, DividedMLP, Matrix)
    model.set_attn_implementation("sdpa")
    try:
        with torch.no_grad():
            torch.testing.assert_close(steps(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
    finally:
        model.set_attn_implementation(ATTENTION)
    assert {id(weight) for weight in steps.parameters()} == held.keys()
    assert all(torch.equal(weight, held[id(weight)]) for weight in model.parameters())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 10, 17, 33, 80])
def test_products_of_any_number_of_rows_are_products(rows, bias) -> None:
    drawn = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 1, 24, generator=drawn), torch.randn(40, 24, generator=drawn)
    added = torch.randn(40, generator=drawn) if bias else None
    out = laid_out_linear(weight, added, True)(x)
    exact = linear(x.double(), weight.double(), None if added is None else added.double())
    assert out.shape == (rows, 1, 40) and (out - exact).abs().max() < 1e-5


@pytest.mark.parametrize(("inputs", "outputs"), [(576, 192), (1536, 576), (896, 128), (2432, 896), (64, 96)])
def test_a_row_is_summed_alike_whatever_rows_stand_beside_it(inputs, outputs) -> None:
    drawn = torch.Generator().manual_seed(inputs)
    x, weight = torch.randn(70, inputs, generator=drawn), torch.randn(outputs, inputs, generator=drawn)
    compute = laid_out_linear(weight, None, True)
    whole = compute(x)
    with one_thread():
        assert torch.equal(compute(x), whole)
        for rows in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64):
            assert torch.equal(compute(x[:rows]), whole[:rows]), rows


def test_what_is_not_known_is_left_whole() -> None:
    model = tiny("llama").model
    assert step_model(model, 1, False) is model
    mlp = model.model.layers[1].mlp
    mlp.up_proj.bias = torch.nn.Parameter(torch.zeros(96))
    try:
        assert count(step_model(model, 2, False), DividedHead, DividedMLP) == 1 + 2
        assert count(step_model(model, 2, True), Matrix) == 3 * 4 + 3  # an MLP that is not divided has matrices, too
    finally:
        mlp.up_proj.bias = None
    other = torch.nn.Module()
    other.get_output_embeddings = lambda: None  # type: ignore[assignment]
    other.mlp = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
    assert step_model(other, 2, False) is other


def test_half_precision_keeps_its_layout() -> None:
    model = tiny("llama", torch.bfloat16).model
    assert not laid_out_bytes(model) and step_model(model, 1, True) is model


def test_a_twin_is_made_once_and_dropped_when_asked(monkeypatch) -> None:
    model = tiny("llama")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    steps = model.stepping()
    assert model.stepping().model is steps.model and steps.stepping().model is not steps.model
    assert count(steps.model, DividedMLP) == 3 and count(steps.model, Matrix) == 3 * 4
    monkeypatch.setattr("kvq_core.machine.threads.NARROW", 1)  # torch divides what gains from it
    assert count(model.stepping().model, DividedMLP) == 0 and count(model.stepping().model, Matrix) == 3 * 7 + 1
    gone = weakref.ref(steps.model)
    model._stepping.forget()
    del steps
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(("name", "value"), [("MOST", 1000), ("SPARE", 1 << 40)])
def test_where_memory_is_short_weights_are_held_once(name, value, monkeypatch) -> None:
    monkeypatch.setattr(products, name, value)
    assert not count(StepModels(tiny("llama").model).by(2), Matrix)


@pytest.mark.real_model
def test_the_loaded_models_second_layout_is_spare() -> None:
    model = load(DEFAULT_MODEL)
    steps = model.stepping().model
    assert count(steps, Matrix) and model.stepping().model is steps
    give_back_spare()
    assert model.stepping().model is not steps
