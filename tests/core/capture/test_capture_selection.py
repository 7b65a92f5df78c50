"""Lanes that leave keys out: what is captured is the attention they really pay, against dense float64 computations."""

import pytest
import torch
from torch import Tensor

from kvq_core.capture.attention import SINKS, AttentionTap, Buckets
from kvq_core.capture.cache_errors import ReferenceCache, cache_errors
from kvq_core.capture.scores import Extent
from kvq_core.capture.spectra import query_directions
from kvq_core.engine.tap import StepScores
from kvq_core.models.scoring import Scoring
from kvq_core.pipeline.compare import compare_on
from kvq_core.record.events import Finished
from kvq_core.spec import ComparisonSpec, Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

IDS = prompt_ids(120)
SPARSITY = {"chunk_size": 4, "budget_tokens": 16, "outlier_chunks": 1, "local_chunks": 2}
SPARSE = Lane(label="sparse", method="svdq", knobs={"schedule": [8] * 8, "sparsity": SPARSITY})
DENSE = Lane(label="dense", method="svdq", knobs={"schedule": [8] * 8})
STEPS = 3


class Watch:
    """Feeds an AttentionTap step by step, and keeps what it was fed."""

    def __init__(self, lanes: int):
        tokens = len(IDS) + STEPS
        self.attention = AttentionTap(Extent(3, 4, 32, lanes, STEPS, tokens), 16, [0], [0, 3], Buckets(1, tokens))
        self.seen: list[tuple[int, Tensor, Tensor, dict[int, Tensor]]] = []

    def isolates(self, fresh: int) -> bool:
        return self.attention.looks(fresh)

    def scores(self, seen: StepScores) -> None:
        self.seen += zip(seen.layers, seen.own.clone(), seen.queries.clone(), seen.reads, strict=True)
        self.attention.scores(seen, [(0, 0)] * (seen.own.shape[1] - 1))
        if seen.layers[-1] == 2:
            self.attention.advance(1)


@pytest.fixture(scope="module")
def watched():
    watch = Watch(2)
    outcome = run_engine(tiny("llama"), IDS, [SPARSE, DENSE], STEPS, follow=prompt_ids(STEPS + 1, 9), tap=watch)
    return watch, outcome


def test_attention_is_that_of_the_keys_read(watched) -> None:
    watch, outcome = watched
    rows = outcome.decode.rows
    of_lane, of_reference = watch.attention.of_lane(0), watch.attention.of_reference()
    select, at = outcome.decode.states[0].cache.selects[0]
    for step, (layer, _, queries, reads) in enumerate(s for s in watch.seen if s[0] == 0):
        n = len(IDS) + step + 1
        read = select(at, queries, n)  # the first layer's queries are the same in every row: nothing lies before it
        assert set(reads) == {1} and torch.equal(reads[1], read) and 0 < (~read).sum() < read.numel()
        for head in range(4):
            q, true, own = (
                x.double()
                for x in (queries[head, 0], *(rows.working(row, 0, "key", layer)[head // 2, :n] for row in (0, 1)))
            )
            p = torch.softmax(true @ q / 32**0.5, 0)
            attended = torch.where(read[head // 2], own @ q / 32**0.5, float("-inf")).softmax(0)
            held = attended > 0
            kl = (attended[held] * (attended[held] / p[held]).log()).sum().item()
            assert of_lane["attention_kl"][step, 0, head].item() == pytest.approx(kl, rel=1e-3, abs=1e-6)
            change = (attended[:SINKS].sum() - p[:SINKS].sum()).item()
            assert of_lane["sink_mass"][step, 0, head].item() == pytest.approx(change, abs=1e-5)
            if head == 3:
                stored = (of_lane["attention_rows"][step, 0, 1, :n].double() / 255).square()
                assert (stored[~read[1]] == 0).all() and (stored - attended).abs().max() < 0.004
    for i in range(STEPS):
        assert (of_lane["attention_kl"][i] > 10 * watch.attention.of_lane(1)["attention_kl"][i]).float().mean() > 0.9
    assert of_reference["attention_rows"].any(-1).all()


def test_its_kl_is_what_the_reference_gives_to_keys_left_out() -> None:
    """With the reference's own scores, KL(lane || reference) = -ln of its mass on the keys read."""
    tap = AttentionTap(Extent(1, 4, 8, 2, 1, 50), 16, [0], [0], Buckets(1, 50))
    own, read = torch.randn(1, 4, 1, 50).repeat(3, 1, 1, 1), torch.rand(2, 50) > 0.4
    tap.scores(StepScores([0], own[None], own[None], torch.empty(1, 4, 1, 8), [{2: read}]), [(0, 0)] * 2)
    tap.advance(1)
    mass = torch.softmax(own[0, :, 0].double(), -1)
    expected = -(mass * read.repeat_interleave(2, 0)).sum(-1).log()
    torch.testing.assert_close(tap.of_lane(1)["attention_kl"][0, 0].double(), expected, rtol=1e-4, atol=1e-6)
    assert tap.of_lane(0)["attention_kl"].abs().max() < 1e-6  # the row beside it reads everything


def test_output_errors_are_over_the_keys_read(watched) -> None:
    _, outcome = watched
    prefill, rows = outcome.decode.prefill, outcome.decode.rows
    directions = query_directions(prefill.groups[0].query_gram)
    queries, seen = prefill.groups[0].queries[:, :, [90, 119, 119]], torch.tensor([120, 122, rows.tokens])
    newest = queries[:, :, -1]
    truth = ReferenceCache.of(
        rows, rows.place, directions, (Scoring(32**-0.5),) * 3, queries, seen, Buckets.of(rows.tokens, 5)
    )
    sparse, dense = (cache_errors(rows, row, truth) for row in (1, 2))
    for layer, head in ((0, 0), (2, 3)):
        select, at = outcome.decode.states[0].cache.selects[layer]
        true, held = (
            [rows.working(row, 0, kind, layer)[head // 2].double() for kind in ("key", "value")] for row in (0, 1)
        )

        def attended(q: Tensor, keys: Tensor, values: Tensor, read: Tensor | None) -> Tensor:
            scores = keys @ q.double() / 32**0.5
            return (scores if read is None else scores.masked_fill(~read, float("-inf"))).softmax(0) @ values

        outputs = [[], []]
        for i, n in enumerate(seen.tolist()[:-1]):
            read = select(at, queries[layer][:, i : i + 1], n)[head // 2]
            outputs[0].append(attended(queries[layer, head, i], true[0][:n], true[1][:n], None))
            outputs[1].append(attended(queries[layer, head, i], held[0][:n], held[1][:n], read))
        exact, got = (torch.stack(found) for found in outputs)
        expected = ((got - exact).norm() / exact.norm()).item()
        assert sparse.output_relative[layer, head].item() == pytest.approx(expected, rel=1e-3)
        read = select(at, newest[layer][:, None], rows.tokens)[head // 2]
        change = attended(newest[layer, head], *held, read) - attended(newest[layer, head], *true, None)
        assert sparse.output[layer, head].item() == pytest.approx(change.norm().item(), rel=1e-3)
    assert sparse.bound is None and (dense.output <= dense.bound).all()
    assert sparse.output.mean() > 5 * dense.output.mean()  # the same codes: all of it is what was not read


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("llama", tokenizer=smollm.tokenizer, layers=6)


def test_the_record_says_so(model) -> None:
    spec = ComparisonSpec(prompt="word " * 60, chat=False, max_new_tokens=4, ignore_eos=True, lanes=(SPARSE, DENSE))
    finished = next(e for e in compare_on(model, spec) if isinstance(e, Finished))
    sparse, dense = finished.record.lanes
    assert any("keys this lane reads" in note for note in sparse.notes)
    assert not any("keys this lane reads" in note for note in dense.notes)
    assert sparse.metrics.output_bound is None and dense.metrics.output_bound > dense.metrics.output_error
    assert "lane/0/output_bound" not in finished.arrays and "lane/1/output_bound" in finished.arrays
    assert torch.isfinite(finished.arrays["lane/0/attention_kl"]).all()


def test_a_record_tells_what_was_dropped_and_what_would_be_left(model) -> None:
    kept = Lane(label="kept", method="per_token", select={"by": "h2o", "heavy": 0.25, "recent": 0.25})
    lanes = (kept, Lane(label="short", method="h2o", layers=(0, 1, 2)))
    spec = ComparisonSpec(prompt="word " * 60, chat=False, max_new_tokens=4, ignore_eos=True, lanes=lanes)
    finished = next(e for e in compare_on(model, spec) if isinstance(e, Finished))
    told, short = finished.record.lanes
    assert told.select == {"by": "h2o", "heavy": 0.25, "recent": 0.25} and short.select is None
    assert told.metrics.output_bound is None and told.metrics.kld_max > 0
    assert torch.isfinite(finished.arrays["lane/0/attention_kl"]).all()
    tokens, budget = told.memory.tokens, 2 * int(0.25 * len(finished.record.reference.prompt_token_ids))
    share = told.memory.kv_ratio * budget / tokens
    assert any(f"{share:.1%} of the fp16 cache in an engine that frees what is dropped" in note for note in told.notes)
    few = 2 * int(0.1 * len(finished.record.reference.prompt_token_ids)) / tokens
    assert any(
        note.startswith(f"{(3 + 3 * few) / 6:.1%} of the {tokens} tokens are still read") for note in short.notes
    )
    assert "never_engaged" not in short.flags and short.memory.kv_ratio == pytest.approx(1)
