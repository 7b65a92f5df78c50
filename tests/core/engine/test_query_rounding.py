"""Queries rounded before they meet a lane's keys, against attention by hand in float64."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from kvq_core.codecs.queries import QueryRounding, rounded_e4m3, rounded_q8_0
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.query_rounding import chunk_attention
from kvq_core.engine.rows import Rows
from kvq_core.methods import Method, ModelRef
from kvq_core.methods.per_token import PerToken
from kvq_core.models.scoring import Scoring
from kvq_core.spec import Lane, Rule
from tests.core.engine.test_rotation_dense import dense
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

SCALING = 0.25


class Rounding(PerToken):
    """Per token, read by a kernel that rounds queries."""

    name: ClassVar[str] = "rounding"
    rounds: bool = True

    def query_rounding(self, model: ModelRef | None = None) -> QueryRounding | None:
        return rounded_q8_0 if self.rounds else None


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of per-token keys of 8 bits are of the method that rounds queries; those of 7-token windows do not."""
    build = Rule.build

    def built(rule: Rule) -> Method:
        method = build(rule)
        if not isinstance(method, PerToken) or method.bits != 8:
            return method
        return Rounding(**method.model_dump(), rounds=method.residual_length != 7)

    monkeypatch.setattr(Rule, "build", built)


def by_hand(x: Tensor) -> Tensor:
    """q8_0 in float64, block by block and element by element."""
    out = torch.empty_like(x, dtype=torch.float64)
    for at, row in enumerate(x.reshape(-1, x.shape[-1]).double()):
        for start in range(0, len(row), 32):
            block = row[start : start + 32]
            scale = block.abs().max().item() / 127
            stored = torch.tensor(scale, dtype=torch.float32).half().item()
            codes = [0 if not scale else int(abs(v) / scale + 0.5) * (1 if v > 0 else -1) for v in block.tolist()]
            out.view(-1, x.shape[-1])[at, start : start + 32] = torch.tensor(codes).double() * stored
    return out


@pytest.mark.parametrize("dim", [32, 64, 80])
def test_q8_0_is_llama_cpps(dim: int) -> None:
    x = torch.randn(3, 5, dim, generator=torch.Generator().manual_seed(dim))
    x[0, 0] = 0
    torch.testing.assert_close(rounded_q8_0(x).double(), by_hand(x), rtol=1e-5, atol=1e-6)


def test_e4m3_has_three_bits_of_mantissa_and_a_most() -> None:
    x = torch.tensor([1.0, 1.0625, 1.07, 1.19, 448.0, 470.0, -1e9, 2.0**-9, 2.0**-11])
    expected = torch.tensor([1.0, 1.0, 1.125, 1.25, 448.0, 448.0, -448.0, 2.0**-9, 0.0])
    torch.testing.assert_close(rounded_e4m3(x), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("fresh", [1, 5])
def test_rows_of_such_keys_alone_read_by_rounded_queries(fresh: int) -> None:
    """In the layers whose keys are so stored, and behind a turn in the basis of the keys; a knob turns it off."""
    lanes = [
        Lane(method="per_token", knobs={"bits": 8}),
        Lane(method="per_token", knobs={"bits": 8}, rotate="signed", layers=(0, 2)),
        Lane(method="per_token", knobs={"bits": 8, "residual_length": 7}),
        Lane(method="per_token", knobs={"bits": 8}, tensors="values"),
    ]
    model, held = tiny("llama"), 50
    prefill = SharedPrefill(model, prompt_ids(held))
    list(prefill.run())
    rope = model.rope(held + fresh)
    rows = Rows(prefill.groups, [LaneCache.of_prompt(x, prefill.groups, rope) for x in lanes], rope, held, held + fresh)
    generator = torch.Generator().manual_seed(fresh)
    count, shape = 1 + len(lanes), model.shape
    turn = dense(lanes[1], shape.layers, shape.kv_heads, shape.head_dim).repeat_interleave(2, 1)
    for layer in range(shape.layers):
        queries = torch.randn(count, shape.query_heads, fresh, shape.head_dim, generator=generator)
        keys, values = (torch.randn(count, shape.kv_heads, fresh, shape.head_dim, generator=generator) for _ in "kv")
        out = rows(layer, queries, keys, values, Scoring(SCALING))
        for row in range(count):
            q = queries[row].double()
            if row == 1:
                q = by_hand(queries[row])
            elif row == 2 and layer != 1:
                q = by_hand(q @ turn[layer]) @ turn[layer].mT
            k, v = (_all(rows, row, kind, layer, new) for kind, new in (("key", keys), ("value", values)))
            scores = q @ k.mT * SCALING
            future = torch.ones(fresh, held + fresh, dtype=torch.bool).triu(held + 1)
            expected = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
            torch.testing.assert_close(out[row].double(), expected.transpose(0, 1), rtol=0, atol=2e-5)


def _all(rows: Rows, row: int, kind: str, layer: int, new: Tensor) -> Tensor:
    """A row's keys or values with those of the step, for every query head, in float64."""
    own = new[row] if row == 0 else new[row].half()
    return torch.cat([rows.working(row, 0, kind, layer).double(), own.double()], -2).repeat_interleave(2, 0)


@pytest.mark.usefixtures("own")
def test_a_run_tells_the_two_apart() -> None:
    knobs = {"bits": 8, "group_size": 32}
    lanes = [Lane(label=name, method="per_token", knobs={**knobs, "residual_length": n}) for name, n in ROUNDS.items()]
    outcome = run_engine(tiny("llama"), prompt_ids(40), lanes, 12, audit=True, ignore_eos=True)
    reference, found = outcome.logits()
    on, off = ((found[at] - reference).abs().mean().item() for at in range(2))
    assert on > 1.2 * off


ROUNDS = {"rounds": 8, "does not": 7}


def test_a_chunks_own_keys_meet_queries_as_they_are() -> None:
    """Token by token in float64: earlier keys by rounded queries, those of the chunk itself by true ones."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(4, 5, 32, generator=generator)
    keys, values = (torch.randn(2, 12, 32, generator=generator) for _ in "kv")
    found = chunk_attention(queries, rounded_q8_0(queries), keys, values, Scoring(SCALING))
    met = by_hand(queries)
    for head in range(4):
        for t in range(5):
            scores = [
                (met if position < 7 else queries.double())[head, t] @ keys[head // 2, position].double() * SCALING
                for position in range(7 + t + 1)
            ]
            expected = torch.stack(scores).softmax(-1) @ values[head // 2, : 8 + t].double()
            torch.testing.assert_close(found[t, head].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_a_prompt_in_stored_chunks_does_not_depend_on_them() -> None:
    """Also where queries are rounded: every token is stored before it is read, and reads by rounded queries."""
    knobs = {"bits": 8, "group_size": 32, "residual_length": 4}
    chunks = [{"chunk": n, "own_chunk": "stored"} for n in (7, 64)]
    lanes = [Lane(label=f"{c['chunk']}", method="per_token", knobs=knobs, prefill=c) for c in chunks]  # type: ignore[arg-type]
    full = Lane(label="full", method="per_token", knobs=knobs)
    outcome = run_engine(tiny("llama"), prompt_ids(50), [*lanes, full], 12, audit=True, ignore_eos=True)
    assert [state.error for state in outcome.decode.states] == [None] * 3
    _, (seven, whole, other) = outcome.logits()
    assert (seven - whole).abs().mean() < 0.1 * (other - whole).abs().mean()
