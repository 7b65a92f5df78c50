"""KVQuant's ranges and levels calibrated once per model: gradients, tables, a lane with them, and what it is called."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from kvq_core.cli.main import main
from kvq_core.codebooks.files import Codebook
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import ModelShape, make
from kvq_core.methods.base import Prompt
from kvq_core.methods.baselines.levels import fitted_levels
from kvq_core.models.gradients import gradients
from kvq_core.models.scoring import causal_attention
from kvq_core.spec import Lane
from kvq_core.training.collect import collect, weighed_samples
from kvq_core.training.ranges import WIDTHS
from kvq_core.training.texts import read_texts, sequences
from kvq_core.training.train import Request, train
from tests.support.codebook_samples import QUIET, Letters
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

TRAINED, HELD_OUT, FRACTION = 4096, 1024, 0.02
ASKED = Request(
    kinds=("ranges",), name="mine", train_tokens=TRAINED, held_out_tokens=HELD_OUT, outlier_fraction=FRACTION
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))


def loss_of(model, ids, layer, tensor, change):
    """The text's loss where one layer's keys or values are changed, without gradients."""

    def attend(at, queries, keys, values, how):
        if at == layer:
            keys, values = (x + change if name == tensor else x for name, x in (("key", keys), ("value", values)))
        return causal_attention(queries, keys, values, how)

    logits = model.forward(torch.tensor([ids]), 0, attend)[0, :-1].double()
    return cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_gradients_are_what_the_loss_changes_by(name):
    model, ids = tiny(name), prompt_ids(20)
    found, step = gradients(model, ids), 1e-2
    chosen = torch.Generator().manual_seed(1)
    for layer, both in found.items():
        for tensor, held in zip(("key", "value"), both, strict=True):
            way = torch.randn(held.x.shape, generator=chosen)
            up, down = (loss_of(model, ids, layer, tensor, sign * step * way) for sign in (1, -1))
            expected = (held.gradient * way).sum().item()
            assert (up - down) / (2 * step) == pytest.approx(expected, rel=0.02, abs=0.02)
    assert set(found) == {0, 1, 2} and all(p.grad is None for p in model.model.parameters())


def test_a_model_whose_weights_are_not_learned_has_them_too():
    model, ids = tiny("llama"), prompt_ids(12)
    whole = gradients(model, ids)
    for parameter in model.model.parameters():
        parameter.requires_grad_(False)
    try:
        frozen = gradients(model, ids)
    finally:
        for parameter in model.model.parameters():
            parameter.requires_grad_(True)
    for layer, both in whole.items():
        for one, other in zip(both, frozen[layer], strict=True):
            torch.testing.assert_close(one.gradient, other.gradient)


def test_weights_draw_levels_to_what_matters():
    numbers = torch.tensor([[-0.9, -0.5, 0.1, 0.2, 0.8]])
    weights = torch.tensor([[1e-12, 3e-12, 1e-12, 1e-12, 0.0]])
    low, high = (0.25 * -0.9 + 0.75 * -0.5), 0.15
    torch.testing.assert_close(fitted_levels(numbers, weights, 2), torch.tensor([[low, high]]), rtol=0, atol=1e-4)
    torch.testing.assert_close(fitted_levels(numbers, 1e9 * weights, 2), fitted_levels(numbers, weights, 2))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple:
    """A model, and what was calibrated for it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KVQ_HOME", str(tmp_path_factory.mktemp("home")))
        model = replace(tiny("llama"), tokenizer=Letters())
        (book,) = train(model, ASKED, QUIET)
        assert train(model, ASKED, QUIET) == [book], "it is there"
        book.tensors()  # kept in memory
    return model, book


@pytest.fixture
def book(made, monkeypatch) -> Codebook:
    monkeypatch.setenv("KVQ_HOME", str(made[1].path.parent.parent))
    return made[1]


@pytest.mark.slow
def test_ranges_leave_out_the_outliers_and_levels_fit_by_gradients(made, book):
    model, _ = made
    cut = sequences(model, read_texts(None), TRAINED, HELD_OUT, 0).train
    plain, found = collect(model, cut, QUIET), weighed_samples(model, cut, QUIET)
    for one, other in ((plain.keys, found.keys), (plain.values, found.values)):
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-3, atol=2e-3)
    tensors = book.tensors()
    rows = found.keys[1, 0].double().numpy().T  # channels of a head
    each = int(np.ceil(FRACTION / 2 * rows.shape[1]))
    ordered = np.sort(rows, 1)
    low, high = ordered[:, each], ordered[:, -1 - each]
    np.testing.assert_allclose(tensors["key_middles"][1, 0], (low + high) / 2, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(tensors["key_halves"][1, 0], (high - low) / 2, rtol=5e-3, atol=2e-3)
    for bits in WIDTHS:
        assert tensors[f"key_levels_{bits}"].shape == tensors[f"value_levels_{bits}"].shape == (3, 1 << bits)
    middles, halves = (tensors[f"key_{name}"][1].double().numpy()[:, None] for name in ("middles", "halves"))
    unit = (found.keys[1].double().numpy() - middles) / halves
    weight = np.where(np.abs(unit) <= 1, found.key_weights[1].double().numpy(), 0).ravel()
    levels = tensors["key_levels_2"][1].double().numpy()
    nearest = np.abs(unit.ravel()[:, None] - levels).argmin(1)
    means = [np.average(unit.ravel()[nearest == at], weights=weight[nearest == at]) for at in range(4)]
    np.testing.assert_allclose(means, levels, atol=5e-3)  # each level is the mean of what is nearest to it
    assert book.info.file_name.endswith(".mine.ranges-o0.02") and 0 < book.info.held_out_error[-1] < 1


@pytest.mark.slow
def test_a_calibrated_lane_reads_them_counts_none_and_is_called_so(made, book):
    model, _ = made
    knobs = {"outlier_fraction": FRACTION}
    lanes = [
        Lane(label="own", method="kvquant", knobs={**knobs, "calibration": "mine"}),
        Lane(label="prompt", method="kvquant", knobs=knobs),
    ]
    assert [lane.title for lane in lanes] == ["KVQuant", "KVQuant (prompt-only calibration)"]
    assert not lanes[0].lacks(model.ref) and lanes[0].data_hash(model.ref) == book.info.content
    outcome = run_engine(model, prompt_ids(90), lanes, 4, ignore_eos=True)
    own, prompt = (outcome.state(name) for name in ("own", "prompt"))
    assert own.error is None and f"squared gradients: {book.info.file_name}" in own.cache.notes[0]
    assert "prompt-only" in prompt.cache.notes[0]
    tensors = book.tensors()
    read = sum(tensors[name].nbytes for name in ("key_middles", "key_halves", "key_levels_2", "value_levels_2"))
    assert own.cache.model_bytes == read and prompt.cache.model_bytes == 0
    for state, held in ((own, set()), (prompt, {"levels", "middles", "halves"})):
        stored = {part for each in state.cache.of("key") for part in each.stream.nbytes()}
        assert stored & {"levels", "middles", "halves"} == held
    shape = ModelShape(3, 4, 2, 32, 1024)
    assert lanes[0].build().fixed_bytes(shape) == (0, 0) != lanes[1].build().fixed_bytes(shape)


@pytest.mark.slow
@pytest.mark.usefixtures("book")
def test_other_widths_are_served_and_other_fractions_are_not(made):
    model, _ = made
    ref = model.ref
    assert not Lane(method="kvquant", knobs={"bits": 4, "outlier_fraction": FRACTION, "calibration": "mine"}).lacks(ref)
    lane = Lane(method="kvquant", knobs={"calibration": "mine"})
    assert [need.command("m") for need in lane.lacks(ref)] == [
        "python -m kvq_core codebooks train --model m --only ranges --outlier-fraction 0.01 --name mine"
    ]
    keys = torch.randn(1, 2, 40, 32)
    with pytest.raises(MethodError, match="There are no ranges like this .* --only ranges --outlier-fraction 0.01"):
        make("kvquant", calibration="mine").fit(Prompt(keys, keys, keys, model=ref, layers=(0,)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"center": "mean"}, "center = mean: its ranges were calibrated on keys as they are"),
        (
            {"rotate": "hadamard", "tensors": "values"},
            "rotate = hadamard: its levels were calibrated on values as they",
        ),
    ],
)
def test_tensors_in_another_basis_than_the_texts_are_refused(given, said):
    Lane(method="kvquant", **given)  # what is fitted on the prompt is fitted on them
    with pytest.raises(SpecError, match=said):
        Lane(method="kvquant", knobs={"calibration": "mine"}, **given)


def test_what_cannot_be_calibrated_is_said_in_one_line(capsys):
    with pytest.raises(SpecError, match="outlier_fraction = 0.7 is not allowed; give a number from 0 to 0.5"):
        train(replace(tiny("llama"), tokenizer=Letters()), replace(ASKED, outlier_fraction=0.7), QUIET)
    assert main(["codebooks", "train", "--only", "ranges", "--outlier-fraction", "much"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
