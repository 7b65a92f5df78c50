"""Sums that do not depend on what is computed beside them, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvq_core.engine import products
from kvq_core.engine.products import BLOCK, add_mixed, add_values, product, shared_tokens
from kvq_core.machine.threads import one_thread
from kvq_core.models import load
from kvq_core.spec import DEFAULT_MODEL, Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

DIMS = st.sampled_from([16, 32, 64, 80, 96, 128])
SEEDS = st.integers(0, 99)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def values_of(weights: Tensor, values: Tensor) -> Tensor:
    out = torch.full((*weights.shape[:2], values.shape[-1]), float("nan"))
    return add_values(out, weights, values, first=True)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, dim=DIMS, rows=st.integers(1, 40), tokens=st.integers(1, 300), beside=st.integers(0, 40))
def test_rows_and_columns_beside_change_no_score(seed: int, dim: int, rows: int, tokens: int, beside: int) -> None:
    queries, keys = drawn(seed, 3, rows + beside, dim), drawn(seed + 1, 3, tokens + beside, dim).mT
    with one_thread():
        all_of_them = product(queries, keys)[:, :rows, :tokens]
        some = product(queries[:, :rows], keys[..., :tokens])
        in_place = torch.empty(3, rows, tokens + 7)
        product(queries[:, :rows], keys[..., :tokens].contiguous(), in_place[..., :tokens])
    assert torch.equal(all_of_them, some) and torch.equal(in_place[..., :tokens], some)
    exact = queries[:, :rows].double() @ keys[..., :tokens].double()
    torch.testing.assert_close(some.double(), exact, rtol=1e-5, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    dim=DIMS,
    rows=st.integers(1, 20),
    beside=st.integers(0, 20),
    tokens=st.integers(1, 300),
    later=st.integers(0, 30),
    split=st.integers(0, 4),
)
def test_where_a_sum_is_split_and_what_is_weighed_by_nothing_changes_no_output(
    seed: int, dim: int, rows: int, beside: int, tokens: int, later: int, split: int
) -> None:
    weights, values = drawn(seed, 3, rows + beside, tokens + later), drawn(seed + 1, 3, tokens + later, dim)
    weights[:, :rows, tokens:] = 0  # a later token
    at = min(split * BLOCK, tokens // BLOCK * BLOCK)
    with one_thread():
        together = values_of(weights, values)[:, :rows]
        own, read = weights[:, :rows, :tokens], values[:, :tokens]
        apart = add_values(values_of(own[..., :at], read[:, :at]), own[..., at:], read[:, at:], first=False)
    assert torch.equal(together, apart)
    torch.testing.assert_close(apart.double(), own.double() @ read.double(), rtol=1e-5, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, dim=DIMS, rows=st.integers(1, 20), tokens=st.integers(1, 200), data=st.data())
def test_what_reads_two_kinds_of_values_sums_as_one_row_alone_would(
    seed: int, dim: int, rows: int, tokens: int, data: st.DataObject
) -> None:
    weights, stored, raw = (
        drawn(seed + i, 2, *shape) for i, shape in enumerate([(rows, tokens), *2 * [(tokens, dim)]])
    )
    ends = torch.tensor(data.draw(st.lists(st.integers(0, tokens), min_size=rows, max_size=rows)))
    left = (torch.arange(tokens) < ends[:, None]).expand(2, -1, -1)
    before = drawn(seed + 3, 2, rows, dim)
    with one_thread():
        mixed = add_mixed(before.clone(), weights, stored, raw, left)
        for row, end in enumerate(ends.tolist()):
            read = torch.cat([stored[:, :end], raw[:, end:]], 1)
            alone = add_values(before[:, [row]].clone(), weights[:, [row]], read, first=False)
            assert torch.equal(mixed[:, [row]], alone)


def test_a_prefix_ends_with_a_block() -> None:
    assert [shared_tokens(n) for n in (0, BLOCK - 1, BLOCK, 3 * BLOCK + 5)] == [0, 0, BLOCK, 3 * BLOCK]


LANES = [
    Lane(label="eight", method="q8_0"),
    Lane(label="four", method="per_token", knobs={"bits": 4, "group_size": 8, "residual_length": 0}),
    Lane(label="window", method="per_token", knobs={"bits": 2, "group_size": 8, "residual_length": 20}),
    Lane(label="kivi", method="kivi", knobs={"bits": 2, "group_size": 8, "residual_length": 16}),
    Lane(label="before RoPE", method="squat", knobs={"group_size": 8, "residual_length": 8, "rope": "pre"}),
    Lane(label="raw", method="kivi", knobs={"group_size": 8, "residual_length": 16}, prefill="32 raw"),
    Lane(label="stored", method="per_token", knobs={"bits": 4, "group_size": 8}, prefill="32 stored"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "llama-mha", "qwen2", "gemma2"])
def test_a_lane_alone_is_a_lane_among_others_to_the_bit(name: str) -> None:
    model, ids = tiny(name), prompt_ids(150)
    together = run_engine(model, ids, LANES, 24, ignore_eos=True)
    for index, lane in enumerate(LANES):
        alone = run_engine(model, ids, [lane], 24, ignore_eos=True)
        assert torch.equal(alone.logits()[1][0], together.logits()[1][index]), lane.label
        assert torch.equal(alone.logits()[0], together.logits()[0])
        assert alone.decode.states[0].token_ids == together.decode.states[index].token_ids


@pytest.mark.long("programs", sample=0)
@pytest.mark.slow
@pytest.mark.real_model
def test_so_it_is_on_a_real_model_where_every_other_order_is_another_figure() -> None:
    model = load(DEFAULT_MODEL)
    ids = model.encode("The mill by the ford grinds rye and oats, and its wheel turns with the tide. " * 8)
    formats = [("q8_0", "deployed"), ("q4_0", "full"), ("kivi", "full"), ("fp8", "7 stored"), ("fp8", "64 stored")]
    lanes = [Lane(label=f"{at}", method=method, prefill=how) for at, (method, how) in enumerate(formats)]
    together = run_engine(model, ids, lanes, 12, ignore_eos=True).logits()[1]
    assert torch.equal(together[3], together[4]), "chunks"
    assert not torch.equal(together[1], together[2])
    for at in (0, 1):
        alone = run_engine(model, ids, [lanes[at]], 12, ignore_eos=True, free_text=False).logits()[1][0]
        assert torch.equal(alone, together[at])


@pytest.mark.slow
def test_it_would_be_another_lane_if_sums_were_split_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above holds is not so by itself."""
    model, ids, lanes = tiny("llama"), prompt_ids(150), LANES[:2]
    ours = run_engine(model, ids, lanes, 24, ignore_eos=True).logits()[1]
    monkeypatch.setattr(products, "BLOCK", 17)
    assert not torch.equal(run_engine(model, ids, lanes, 24, ignore_eos=True).logits()[1], ours)
