"""The floor of another kernel: seeded, of its own row, and nothing to the others and to the model they share."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier
from typing import Any

import pytest
import torch

import kvq_core
from kvq_core.analysis.floors import above_floor, floors, larger
from kvq_core.analysis.verdict import verdict
from kvq_core.cli.tables import describe_record
from kvq_core.engine.decode import Decode
from kvq_core.engine.fidelity import Fidelity
from kvq_core.engine.kernel_floor import KernelFloor
from kvq_core.engine.prefill import Precision, SharedPrefill
from kvq_core.models import LoadedModel
from kvq_core.models.lockstep import attending
from kvq_core.models.rounding import SIZE, KernelNoise, round_row
from kvq_core.models.scoring import causal_attention
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.estimate import estimate
from kvq_core.record.events import Finished
from kvq_core.spec import ComparisonSpec, Lane, parse_spec
from tests.support.tiny_models import CONFIGS, SCALED, prompt_ids, tiny
from tests.support.ui_record_factory import make_run
from ui.export.card import scoring_line
from ui.figures import confidence
from ui.html.tables import scorecard
from ui.selection import Selection
from ui.views.verdicts import compute
from ui.words import overall

LANES = [
    {"label": "8", "method": "per_token", "knobs": {"bits": 8, "group_size": 32}},
    {"label": "2", "method": "kivi"},
]
TEXT = "The harbour master wrote down every ship that came in, its port, its cargo and its draught. " * 9


def spec_of(floors: str = "both", **changes: object) -> ComparisonSpec:
    return parse_spec(
        {"prompt": TEXT, "max_new_tokens": 12, "ignore_eos": True, "lanes": LANES, "floors": floors, **changes}
    )


def by_hand(model: LoadedModel, ids: list[int], seed: int) -> torch.Tensor:
    """What the layers answer, computed by hooks on a copy that is the test's own: a draw a layer, in order."""
    copy = deepcopy(model.model)
    generator = torch.Generator().manual_seed(seed)

    def noise(module: object, given: object, out: torch.Tensor) -> torch.Tensor:
        return out * (1 + SIZE * torch.randn(out.shape[1:], generator=generator))

    for layer in copy.model.layers[:-1]:
        layer.register_forward_hook(noise)
    copy.set_attn_implementation("eager")
    with torch.no_grad():
        return copy.model(torch.tensor([ids]), use_cache=False).last_hidden_state


def test_noise_is_seeded_and_that_of_the_definition() -> None:
    model, ids = tiny("llama"), prompt_ids(30)
    first, again, other = (KernelFloor(KernelNoise(seed)) for seed in (3, 3, 4))
    for floor in (first, again, other):
        assert list(floor.read(model, ids, range(30), (), Precision())) == [30]
    assert torch.equal(first.prefill.hidden, again.prefill.hidden)
    assert not torch.equal(first.prefill.hidden, other.prefill.hidden)
    torch.testing.assert_close(first.prefill.hidden, by_hand(model, ids, 3)[0], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", [*CONFIGS, *SCALED])
def test_one_row_is_rounded_on_every_architecture(name: str) -> None:
    model = tiny(name)
    before = {n: (id(module), dict(vars(module))) for n, module in model.model.named_modules()}
    rounded = round_row(model.model, KernelNoise(0), 1)
    ids = torch.tensor([prompt_ids(9)] * 3)
    plain = SharedPrefill(model, prompt_ids(9), range(9))
    list(plain.run())
    with torch.no_grad():
        with attending(_attend, model.scoring):
            out = rounded.base_model(ids, use_cache=False).last_hidden_state
    assert torch.equal(out[0], out[2]) and 0 < (out[1] - out[0]).abs().max() < 0.2 * out[0].abs().max()
    torch.testing.assert_close(out[0], plain.hidden, atol=1e-4, rtol=1e-4)
    assert before == {n: (id(module), dict(vars(module))) for n, module in model.model.named_modules()}


def _attend(layer: int, *call: Any) -> torch.Tensor:
    return causal_attention(*call)


def decoded(with_kernel: bool) -> tuple[Decode, list[torch.Tensor]]:
    """A run of two lanes and perhaps the other kernel, and the logits of its forced rows."""
    model, ids, fp16 = tiny("qwen2"), prompt_ids(40), Lane(label="fp16", method="fp16")
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    lanes = [Lane(label="2 bits", method="per_token", knobs={"bits": 2, "group_size": 8, "residual_length": 0}), fp16]
    decode = Decode(
        model,
        prefill,
        ComparisonSpec(prompt="-", max_new_tokens=16, lanes=tuple(lanes), ignore_eos=True),
        [*lanes, fp16][: 3 if with_kernel else 2],
    )
    if with_kernel:
        decode.states[-1].kernel = KernelFloor(KernelNoise(0))
        list(decode.states[-1].kernel.read(model, ids, (), (), Precision()))
    list(decode.encode())
    list(decode.fill())
    logits: list[torch.Tensor] = []
    for _ in decode.steps(lambda p, q, _: logits.append(torch.cat([p[None], q])), None, lambda rows: None):
        assert not any(decode.rows.lane_of[forced:].count(3) for forced in [decode._forced_rows()])
    return decode, logits


@pytest.mark.slow
def test_its_row_is_forced_only_and_leaves_the_others_as_they_are() -> None:
    (alone, without), (decode, logits) = decoded(False), decoded(True)
    assert decode.token_ids == alone.token_ids and len(logits) == len(without)
    for ours, theirs in zip(logits, without, strict=True):
        torch.testing.assert_close(ours[:3], theirs, atol=1e-4, rtol=1e-4)
    assert decode.states[0].token_ids == alone.states[0].token_ids
    shift = torch.stack([(ours[3] - ours[0]).abs().max() for ours in logits])
    assert (shift > 1e-4).all() and decode.states[2].free is None


def test_the_near_tie_margin_is_the_larger_floors() -> None:
    reference = torch.randn(20, 50)
    top = reference.topk(2).indices
    loud = reference.scatter_add(1, top[:, :1], torch.full((20, 1), -0.9))
    lanes = torch.stack([reference - 3, loud, reference])
    for floors_, expected in ((1, 0.2), (2, 0.9)):
        fidelity = Fidelity(3, floors_)
        fidelity(reference, lanes, [0] * 20)
        assert fidelity.near_tie_margin() == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def model(smollm: LoadedModel) -> LoadedModel:
    return tiny("llama", tokenizer=smollm.tokenizer)


def run(model: LoadedModel, spec: ComparisonSpec) -> Finished:
    *_, last = compare_on(model, spec)
    assert isinstance(last, Finished)
    return last


@pytest.fixture(scope="module")
def runs(smollm: LoadedModel) -> dict[str, Finished]:
    """On the real model: how large a floor is depends on it."""
    return {
        name: run(smollm, spec_of(name, prompt=TEXT[: len(TEXT) // 2], max_new_tokens=7))
        for name in ("storage", "both")
    }


@pytest.mark.slow
def test_a_run_has_both_floors_and_its_lanes_as_before(runs: dict[str, Finished]) -> None:
    before, after = runs["storage"].record, runs["both"].record
    assert before.kernel_floor is None and before.id != after.id
    floor = after.kernel_floor
    assert floor is not None and floor.metrics is not None and [lane.label for lane in after.lanes] == ["8", "2"]
    assert 1e-5 < floor.metrics.kld_mean < 1e-2 and floor.metrics.kld_mean > 20 * after.noise_floor.metrics.kld_mean
    assert floor.metrics.attention_delta_mean is None and larger(after) == "kernel"
    assert after.reference == before.reference
    for ours, theirs in zip(after.lanes, before.lanes, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.metrics.kld_mean == pytest.approx(theirs.metrics.kld_mean, rel=1e-2)
        assert ours.metrics.key_rmse == pytest.approx(theirs.metrics.key_rmse, rel=1e-4)
        assert ours.metrics.attention_delta_mean == pytest.approx(theirs.metrics.attention_delta_mean, rel=1e-2)
    names = {name for name in runs["both"].arrays if name.startswith("lane/kernel/")}
    assert {name for name in runs["both"].arrays if name not in names} == set(runs["storage"].arrays)
    assert "lane/kernel/kld" in names and "lane/kernel/delta_map" not in names


@pytest.mark.slow
def test_two_threads_compute_what_each_does_alone(model: LoadedModel) -> None:
    specs = [spec_of(capture={"detail": "off"}, seed=seed) for seed in (0, 1)]
    both = Barrier(len(specs))

    def start(spec: ComparisonSpec) -> kvq_core.Record:
        both.wait()
        return run(model, spec).record

    with ThreadPoolExecutor(len(specs)) as pool:
        together = list(pool.map(start, specs))
    for record, spec in zip(together, specs, strict=True):
        alone = run(model, spec).record
        for at in floors(record):
            ours, theirs = floors(record)[at], floors(alone)[at]
            assert ours.model_dump(exclude={"timing"}) == theirs.model_dump(exclude={"timing"})
    assert together[0].kernel_floor.metrics != together[1].kernel_floor.metrics
    assert together[0].noise_floor.metrics.kld_mean == together[1].noise_floor.metrics.kld_mean


@pytest.mark.slow
def test_the_estimate_counts_the_pass_and_the_row(smollm: object) -> None:
    assert estimate(spec_of()).cost.bytes > estimate(spec_of("storage")).cost.bytes


def with_kernel() -> tuple[kvq_core.Record, dict[str, torch.Tensor]]:
    record, arrays = make_run(2, scored=64)
    record.kernel_floor = record.noise_floor.model_copy(deep=True, update={"label": "Another kernel"})
    for at, mean, lane in (
        ("noise", 1e-6, record.noise_floor),
        ("kernel", 2e-4, record.kernel_floor),
        (0, 1e-4, record.lanes[0]),
        (1, 0.3, record.lanes[1]),
    ):
        arrays[f"lane/{at}/kld"] = torch.full((64,), mean)
        arrays[f"lane/{at}/same_top"] = torch.ones(64, dtype=torch.uint8)
        lane.metrics.kld_mean = mean
    return record, arrays


def test_verdicts_use_the_larger_floor_and_say_which() -> None:
    record, arrays = with_kernel()
    quiet, loud = (verdict(record, arrays, at) for at in (0, 1))
    assert "larger floor, another kernel: mean KLD 0.0002" in quiet.why and "larger floor" in loud.why
    assert "No further off than another kernel: mean KLD 0.0001 against 0.0002 nats." in quiet.sentence
    assert "another kernel" not in loud.sentence
    assert (above_floor(record, arrays, 0), above_floor(record, arrays, 1)) == (0, 1)
    record.kernel_floor = None
    assert "(noise floor: mean KLD 1e-06" in verdict(record, arrays, 0).why
    assert above_floor(record, arrays, 0) == 1


def test_both_floors_stand_wherever_there_was_one() -> None:
    record, arrays = with_kernel()
    html = compute(record, arrays, Selection()).html["verdicts"]
    assert '<th scope="col">storage</th><th scope="col">another kernel</th>' in html and "noise floor</th>" not in html
    assert [row["lane"] for row in scorecard(record, arrays)][:2] == ["Noise floor", "Another kernel"]
    assert "Another kernel" in describe_record(record, arrays) and "another kernel" in overall(record, arrays)
    assert "another kernel: 2e-4" in scoring_line(record) and len(confidence(record, arrays).data) == 4
