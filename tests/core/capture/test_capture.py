"""Captured scores and attention against direct computations on small tensors."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kvq_core.capture.attention import SINKS, AttentionTap, Buckets
from kvq_core.capture.scores import Extent, ScoreTap
from kvq_core.engine.rows import Rows
from kvq_core.engine.tap import StepScores
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny


def test_statistics_and_map_of_one_step() -> None:
    extent = Extent(layers=2, query_heads=3, head_dim=4, lanes=2, steps=5, tokens=600)
    tap = ScoreTap(extent, [1], [0, 1, 2])
    tap.begin([(10, 300), (0, 0)])
    both = torch.randn(2, 3, 3, 1, 500)
    tap.scores(StepScores([0, 1], both, None, torch.randn(2, 3, 1, 4), [{}, {}]))
    tap.advance(1)
    own = both[1]
    delta = (own[1:] - own[:1])[:, :, 0].double()
    delta = delta - delta.mean(-1, keepdim=True)
    torch.testing.assert_close(tap.mean[0, 1, :, 0].double(), delta[0, :, 10:300].abs().mean(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tap.max[1, 1, :, 0].double(), delta[1].abs().amax(-1), rtol=1e-4, atol=1e-5)
    values, scale = tap.int8_map(0)
    assert values.shape == (1, 3, 5, 200) and tap.position_edges[:3] == [0, 3, 6] and tap.position_edges[-1] == 600
    for head in range(3):
        for position in (0, 40, 99):
            bin = delta[0, head, 3 * position : 3 * position + 3]
            extreme = bin[bin.abs().argmax()]
            assert abs(values[0, head, 0, position] * scale[0, head] - extreme) <= scale[0, head] * 0.51
    assert not values[:, :, 1:].any()  # later steps have not happened


def test_a_shift_of_a_whole_row_is_no_error() -> None:
    """Softmax ignores what all positions share, so the centred delta is zero."""
    tap = ScoreTap(Extent(1, 2, 4, 1, 1, 50), [0], [0, 1])
    own = torch.randn(1, 2, 1, 50).repeat(2, 1, 1, 1)
    own[1] += 7.0
    tap.begin([(0, 50)])
    tap.scores(StepScores([0], own[None], None, torch.randn(1, 2, 1, 4), [{}]))
    assert tap.max.max() < 1e-5
    torch.testing.assert_close(tap.offset, torch.full((1, 1, 2, 1), 7.0))  # what was taken away is kept beside


def test_chunked_steps_ignore_the_future() -> None:
    """A chunk of three tokens: every token's row is centred over what it sees, and -inf never leaks."""
    tap = ScoreTap(Extent(1, 1, 4, 2, 3, 10), [0], [0])
    own = torch.randn(3, 1, 3, 10)
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    own[..., -3:].masked_fill_(hidden, float("-inf"))
    tap.begin([(0, 7), (0, 7)])
    tap.scores(StepScores([0], own[None], None, torch.randn(1, 1, 3, 4), [{}]))
    for token in range(3):
        seen = own[1, 0, token, : 8 + token] - own[0, 0, token, : 8 + token]
        seen = seen - seen.mean()
        torch.testing.assert_close(tap.mean[0, 0, 0, token], seen[:7].abs().mean(), rtol=1e-4, atol=1e-5)
        shift = (own[1, 0, token, : 8 + token] - own[0, 0, token, : 8 + token]).mean()
        torch.testing.assert_close(tap.offset[0, 0, 0, token], shift, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(tap.map).all()


def test_steps_share_bins_by_their_extreme() -> None:
    tap = ScoreTap(Extent(1, 1, 4, 2, 130, 4), [0], [0])
    tap.begin([(0, 4), (0, 4)])
    seen = []
    for step in range(130):
        row = torch.zeros(3, 1, 1, 4)
        row[1, ..., 0], row[1, ..., 1] = step, -step
        seen.append(step)
        tap.scores(StepScores([0], row[None], None, torch.zeros(1, 1, 1, 4), [{}]))
        tap.advance(1)
    assert tap.step_bins == 64 and tap.step_edges[0] == 0 and tap.step_edges[-1] == 130
    for b in range(64):
        assert tap.map[0, 0, 0, b, 0] == tap.step_edges[b + 1] - 1  # the largest step of the bin
        assert tap.map[0, 0, 0, b, 1] == -(tap.step_edges[b + 1] - 1)


def test_engine_scores_equal_those_of_the_stored_keys() -> None:
    """The tap's deltas, recomputed from the working copies: q.k / sqrt(d) of reference and lane."""
    model, ids = tiny("llama"), prompt_ids(40)
    lane = Lane(label="k", method="kivi", knobs={"group_size": 8, "residual_length": 8})
    seen: list[tuple[int, Tensor, Tensor, Tensor]] = []
    unasked: list[Tensor] = []

    class Spy:
        def __init__(self, isolating: bool):
            self.isolating = isolating

        def isolates(self, fresh: int) -> bool:
            return self.isolating

        def scores(self, now: StepScores) -> None:
            assert not any(now.reads)  # this lane leaves nothing out
            if now.with_reference_query is None:
                unasked.extend(now.own.clone())
                return
            copies = (now.own.clone(), now.with_reference_query.clone(), now.queries.clone())
            seen.extend(zip(now.layers, *copies, strict=True))

    run_engine(model, ids, [lane], 2, follow=prompt_ids(2, seed=9), tap=Spy(False))
    outcome = run_engine(model, ids, [lane], 2, follow=prompt_ids(2, seed=9), tap=Spy(True))
    torch.testing.assert_close(torch.stack([own for _, own, *_ in seen]), torch.stack(unasked))
    rows: Rows = outcome.decode.rows
    for layer, own, ref, queries in seen:
        kept = [rows.working(row, 0, "key", layer).repeat_interleave(2, 0) for row in (0, 1)]
        for row, keys in enumerate(kept):
            expected = queries.double() @ keys.double().transpose(-1, -2) * 32**-0.5
            # flushed after this step's attention: only positions the step itself saw as they are now
            torch.testing.assert_close(ref[row, :, 0, :32].double(), expected[:, 0, :32], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own[0], ref[0])
    assert len(seen) == 3


def test_step_edges_are_those_the_bins_have() -> None:
    """Also where nothing is scored: one token is generated, and it comes from the prefill."""
    for steps in (0, 1, 5, 63, 64, 65, 100, 200):
        tap = ScoreTap(Extent(1, 1, 4, lanes=1, steps=steps, tokens=10), [0], [0])
        edges = tap.step_edges
        assert len(edges) == tap.step_bins + 1 and (edges[0], edges[-1]) == (0, steps)
        bins = [tap._bin(step) for step in range(steps)]
        assert [sum(low <= step < high for step in range(steps)) for low, high in pairwise(edges)] == [
            bins.count(b) for b in range(tap.step_bins)
        ]


def test_attention_of_the_steps_looked_at() -> None:
    extent = Extent(layers=2, query_heads=4, head_dim=8, lanes=2, steps=40, tokens=300)
    tap = AttentionTap(extent, 16, [1], [0, 3], Buckets(2, 300))
    assert tap.steps[0] == 0 and tap.steps[-1] == 39 and len(tap.steps) == 16
    rows, alone = {}, {}
    for step in range(20):  # the reference ends early
        for layer in range(2):
            rows[step, layer] = 3 * torch.randn(3, 4, 1, 261 + step)
            alone[step, layer] = torch.randn(3, 4, 1, 261 + step)
        both = (torch.stack([x[step, layer] for layer in range(2)]) for x in (rows, alone))
        assert tap.looks(1) == (step in tap.steps)
        tap.scores(StepScores([0, 1], *both, torch.empty(2, 4, 1, 8), [{}, {}]), [(10, 200), (0, 0)])
        tap.advance(1)
    at = {step: i for i, step in enumerate(tap.captured_steps)}
    assert max(tap.captured_steps) < 20
    of_lane, of_reference = tap.of_lane(0), tap.of_reference()
    for step, i in at.items():
        p, q = (torch.softmax(rows[step, 1][r, 3, 0].double(), 0) for r in (0, 1))
        assert of_lane["attention_kl"][i, 1, 3].item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-4)
        sinks = (q[:SINKS].sum() - p[:SINKS].sum()).item()
        assert of_lane["sink_mass"][i, 1, 3].item() == pytest.approx(sinks, abs=1e-6)
        pooled = torch.nn.functional.pad(p, (0, 300 - len(p))).view(150, 2).sum(-1)
        stored = (of_reference["attention_rows"][i, 0, 1].double() / 255).square()
        assert (stored - pooled).abs().max() < 0.004 and torch.allclose(stored.sqrt(), pooled.sqrt(), atol=0.5 / 255)
        assert not torch.equal(of_lane["attention_rows"][i], of_reference["attention_rows"][i])
        for lane, quantized in enumerate((slice(10, 200), slice(None))):
            delta = (alone[step, 1][1 + lane] - rows[step, 1][0])[2, 0].double()
            expected = (delta - delta.mean())[quantized].abs().mean().item()
            assert tap.of_lane(lane)["delta_by_keys"][i, 1, 2].item() == pytest.approx(expected, rel=1e-3)
            plain = delta[quantized].abs().mean().item()
            assert tap.of_lane(lane)["uncentred_by_keys"][i, 1, 2].item() == pytest.approx(plain, rel=1e-3)
    assert "attention_rows" not in tap.of_lane(1)  # the noise floor is no picture
    error, count = torch.zeros(300, dtype=torch.float64), torch.zeros(300)
    for step in at:
        delta = (rows[step, 0][1] - rows[step, 0][0])[2, 0].double()
        error[: len(delta)] += (delta - delta.mean()).abs()
        count[: len(delta)] += 1
    for b, (start, end) in enumerate(pairwise(tap.depths.edges)):
        expected = (error[start:end].sum() / count[start:end].sum().clamp_min(1)).item()
        assert of_lane["depth_score_error"][0, 2, b].item() == pytest.approx(expected, rel=1e-4)


def test_a_chunk_of_tokens_sees_only_its_past() -> None:
    tap = AttentionTap(Extent(1, 1, 4, 1, 3, 10), 16, [0], [0], Buckets(1, 10))
    own = torch.randn(2, 1, 3, 10)
    own[..., -3:].masked_fill_(torch.ones(3, 3, dtype=torch.bool).triu(1), float("-inf"))
    alone = torch.randn(2, 1, 3, 10)
    assert tap.looks(3)
    tap.scores(StepScores([0], own[None], alone[None], torch.empty(1, 1, 3, 4), [{}]), [(0, 6)])
    tap.advance(3)
    found = tap.of_lane(0)
    for i in range(3):
        p, q = (torch.softmax(own[r, 0, i, : 8 + i].double(), 0) for r in (0, 1))
        assert found["attention_kl"][i, 0, 0].item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-4)
        delta = (alone[1, 0, i] - own[0, 0, i])[: 8 + i].double()
        expected = (delta - delta.mean())[:6].abs().mean().item()
        assert found["delta_by_keys"][i, 0, 0].item() == pytest.approx(expected, rel=1e-3)
    assert all(torch.isfinite(x.float()).all() for x in found.values())


def test_stored_attention_stays_within_its_budget() -> None:
    large = Extent(layers=32, query_heads=32, head_dim=128, lanes=9, steps=2000, tokens=8000)
    tap = AttentionTap(large, 64, list(range(32)), list(range(32)), Buckets.of(8000, 256))
    assert tap.rows.numel() <= 10_000_000 and tap.rows.shape[0] == 9 and len(tap.steps) == 4
