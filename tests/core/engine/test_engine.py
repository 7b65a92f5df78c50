"""The lock-step engine against transformers, against a naive KIVI, and against itself run differently."""

from collections.abc import Callable

import pytest
import torch

from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.rows import Rows
from kvq_core.engine.sampling import Sampler
from kvq_core.errors import StoreError
from kvq_core.methods import make
from kvq_core.models.lockstep import ATTENTION
from kvq_core.packed.cache import packed_cache
from kvq_core.spec import Lane
from tests.support.campaigns import pairs
from tests.support.engine_runs import run_engine
from tests.support.naive_kivi import naive_kivi
from tests.support.tiny_models import CONFIGS, SCALED, generate, prompt_ids, tiny

LANES = [
    Lane(label="kivi", method="kivi", knobs={"group_size": 8, "residual_length": 16}),
    Lane(label="sinks", method="kivi", knobs={"group_size": 8, "residual_length": 8, "sink_tokens": 5}),
    Lane(label="squat", method="squat", knobs={"group_size": 8, "residual_length": 16, "block_size": 8}),
    Lane(label="pre", method="squat", knobs={"group_size": 8, "residual_length": 8, "rope": "pre"}),
    Lane(label="token", method="per_token", knobs={"group_size": 16, "residual_length": 0}),
    Lane(label="channel", method="per_channel", knobs={"group_size": 8, "residual_length": 8}),
    Lane(label="some", method="squat", knobs={"group_size": 8, "residual_length": 8, "rope": "pre"}, layers=(0, 2)),
    Lane(label="values", method="kivi", tensors="values", knobs={"group_size": 8, "residual_length": 8}),
]


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize(("name", "count"), pairs([*CONFIGS, *SCALED], (3, 61, 530)))  # 530: a second prefill chunk
def test_reference_row_equals_generate(name: str, count: int) -> None:
    model, ids = tiny(name), prompt_ids(count)
    expected = generate(model, ids, 24)
    outcome = run_engine(model, ids, LANES[:4], 24, ignore_eos=True)
    assert outcome.decode.token_ids == expected


def test_chunked_prefill_equals_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), prompt_ids(150)
    whole = SharedPrefill(model, ids)
    list(whole.run())
    monkeypatch.setattr("kvq_core.engine.prefill.CHUNK", 64)
    chunked = SharedPrefill(model, ids)
    assert list(chunked.run()) == [64, 128, 150]
    torch.testing.assert_close(chunked.logits, whole.logits, rtol=1e-4, atol=1e-4)
    for a, b in zip(chunked.groups, whole.groups, strict=True):
        torch.testing.assert_close(a.keys, b.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(a.queries, b.queries, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("llama", 1), ("llama", 47), ("qwen2", 5), ("qwen3", 100), ("mistral", 16), ("llama-mha", 33)]
)
def test_packed_stores_decode_to_what_attention_reads(name: str, count: int) -> None:
    outcome = run_engine(tiny(name), prompt_ids(count), LANES, 18, audit=True, ignore_eos=True)
    assert all(s.error is None for s in outcome.decode.states)
    assert torch.isfinite(outcome.logits()[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_run(dtype: torch.dtype) -> None:
    outcome = run_engine(tiny("llama", dtype), prompt_ids(40), LANES, 12, audit=True, ignore_eos=True)
    assert outcome.decode.token_ids and all(s.error is None for s in outcome.decode.states)


@pytest.mark.slow
def test_a_lane_does_not_depend_on_its_neighbours() -> None:
    model, ids = tiny("qwen3"), prompt_ids(70)
    together = run_engine(model, ids, LANES, 32, ignore_eos=True)
    for index, lane in enumerate(LANES):
        alone = run_engine(model, ids, [lane], 32, ignore_eos=True)
        assert torch.equal(alone.logits()[1][0], together.logits()[1][index])
        assert alone.decode.states[0].token_ids == together.decode.states[index].token_ids


@pytest.mark.slow
def test_forced_rows_follow_the_reference_as_a_continuation_would() -> None:
    model, ids = tiny("llama"), prompt_ids(55)
    generated = run_engine(model, ids, LANES, 30, ignore_eos=True)
    scored = run_engine(model, ids, LANES, 30, follow=generated.decode.token_ids)
    for a, b in zip(generated.logits(), scored.logits(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert generated.closed == scored.closed == 1


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2, 7, 64])
def test_scoring_in_chunks(chunk: int) -> None:
    """Unquantized rows do not depend on the chunk; quantized ones end with the same packed cache length."""
    model, ids = tiny("qwen2"), prompt_ids(41)
    follow = prompt_ids(33, seed=1)
    lanes = [Lane(label="floor", method="fp16"), LANES[0], LANES[3]]
    one = run_engine(model, ids, lanes, 1, follow=follow, audit=True)
    many = run_engine(model, ids, lanes, 1, follow=follow, score_chunk=chunk, audit=True)
    torch.testing.assert_close(one.logits()[0], many.logits()[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.logits()[1][0], many.logits()[1][0], rtol=1e-3, atol=1e-3)
    for a, b in zip(one.decode.states, many.decode.states, strict=True):
        assert a.cache is not None and b.cache is not None
        assert [p.stream.packed_tokens for p in a.cache.parts] == [p.stream.packed_tokens for p in b.cache.parts]


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 16, 45, 64])
def test_free_row_equals_a_naive_kivi(count: int) -> None:
    """The text of a lane that goes its own way, from first principles."""
    model, ids, new = tiny("llama"), prompt_ids(count, seed=3), 48
    lane = Lane(label="kivi", method="kivi", knobs={"bits": 1, "group_size": 8, "residual_length": 16})
    outcome = run_engine(model, ids, [lane], new, ignore_eos=True)
    naive, first = naive_kivi(model, ids, bits=1)
    tokens = [first]
    for position in range(count, count + new - 1):
        logits = model.forward(torch.tensor([[tokens[-1]]]), position, naive)
        tokens.append(int(logits[0, -1].argmax()))
    state = outcome.decode.states[0]
    assert state.token_ids == tokens
    if count == 64:
        assert state.first_divergence is not None, "the lane never left the reference: nothing was tested"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("llama", 45), ("qwen3", 64)])
def test_forced_logits_equal_those_of_a_naive_kivi(name: str, count: int) -> None:
    model, ids = tiny(name), prompt_ids(count, seed=3)
    lane = Lane(label="kivi", method="kivi", knobs={"bits": 2, "group_size": 8, "residual_length": 16})
    outcome = run_engine(model, ids, [lane], 24, ignore_eos=True)
    naive, _ = naive_kivi(model, ids, bits=2)
    reference, lanes = outcome.logits()
    for step, token in enumerate(outcome.decode.token_ids[:-1]):
        expected = model.forward(torch.tensor([[token]]), count + step, naive)[0, -1]
        torch.testing.assert_close(lanes[0, step], expected, rtol=0, atol=1e-3)
    assert (lanes[0] - reference).abs().amax(-1).min() > 0.02  # far more than the tolerance, at every position


@pytest.mark.slow
def test_rows_end_at_their_own_eos() -> None:
    """Every row's text ends with its first EOS, whatever the other rows do."""
    model, ids = tiny("llama"), prompt_ids(64, seed=3)
    free_run = run_engine(model, ids, LANES, 24, ignore_eos=True)
    texts = [free_run.decode.token_ids, *(s.token_ids for s in free_run.decode.states)]
    ends = sorted({token for text in texts for token in text[6:14]})[:3]
    for eos in ends:
        model.eos_ids = frozenset({eos})
        try:
            outcome = run_engine(model, ids, LANES, 24, audit=True)
        finally:
            del model.eos_ids
        for got, endless in zip(
            [outcome.decode.token_ids, *(s.token_ids for s in outcome.decode.states)], texts, strict=True
        ):
            stop = endless.index(eos) + 1 if eos in endless else len(endless)
            assert got == endless[:stop]
        scored = len(outcome.decode.token_ids) - 1
        assert sum(len(part) for part in outcome.reference) == scored
        assert outcome.closed == 1


@pytest.mark.slow
def test_rows_go_on_when_the_last_row_that_looks_back_has_ended() -> None:
    """QAQ's cache looks back on every step's attention; its text ends while the reference's and another's go on."""
    model, ids = tiny("llama"), prompt_ids(90)
    plain = Lane(label="token", method="per_token", knobs={"bits": 2, "residual_length": 0})
    lanes = [Lane(label="qaq", method="qaq"), plain]
    endless = run_engine(model, ids, lanes, 24, ignore_eos=True)
    texts = [endless.decode.token_ids, *(state.token_ids for state in endless.decode.states)]
    eos = next(token for token in texts[0] if token in texts[1] and token not in texts[2])
    model.eos_ids = frozenset({eos})
    try:
        outcome = run_engine(model, ids, lanes, 24)
    finally:
        del model.eos_ids
    got = [outcome.decode.token_ids, *(state.token_ids for state in outcome.decode.states)]
    assert got == [text[: text.index(eos) + 1] if eos in text else text for text in texts]


@pytest.mark.slow
def test_sampled_rows_share_their_random_numbers() -> None:
    model, ids = tiny("mistral"), prompt_ids(30)
    floor = Lane(label="floor", method="fp16")
    first = run_engine(model, ids, [floor, LANES[0]], 40, temperature=1.0, seed=5, ignore_eos=True)
    again = run_engine(model, ids, [floor, LANES[0]], 40, temperature=1.0, seed=5, ignore_eos=True)
    other = run_engine(model, ids, [floor], 40, temperature=1.0, seed=6, ignore_eos=True)
    assert first.decode.token_ids == again.decode.token_ids != other.decode.token_ids
    assert first.state("floor").token_ids == first.decode.token_ids  # an unquantized cache samples the same text


def test_sampler_draws_from_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    sampler = Sampler(0.5, seed=1)
    counts = torch.zeros(3)
    for _ in range(4000):
        sampler.draw(3)
        counts[sampler.choose(logits)[0]] += 1
    expected = torch.softmax(logits[0] / 0.5, -1)
    assert (counts / 4000 - expected).abs().max() < 0.025


def test_lane_that_cannot_be_encoded_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [Lane(label="bad", method="squat", knobs={"regularization": 10.0}), LANES[0]]
    broken = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda a: (broken(a)[0], torch.ones(1)))
    outcome = run_engine(tiny("llama"), prompt_ids(80), lanes, 8, ignore_eos=True)
    assert "regularization" in (outcome.state("bad").error or "")
    assert outcome.state("kivi").error is None and len(outcome.logits()[1]) == 1


@pytest.mark.parametrize("error", [StoreError("Codebook x is damaged."), KeyError("theta"), AssertionError()])
@pytest.mark.parametrize("when", ["fit", "decode"])
def test_whatever_a_method_does_wrong_fails_its_lane_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, when: str
) -> None:
    def broken(*_: object) -> None:
        raise error

    lanes = [Lane(label="bad", method="per_channel", knobs={"group_size": 8, "residual_length": 8}), LANES[0]]
    if when == "fit":
        monkeypatch.setattr("kvq_core.methods.per_channel.PerChannel.fit", broken)
    else:
        monkeypatch.setattr("kvq_core.engine.rows.Rows.store_tokens", _breaking_first(broken))
    outcome = run_engine(tiny("llama"), prompt_ids(40), lanes, 12, ignore_eos=True)
    said = outcome.state("bad").error
    assert said is not None and said.startswith(str(error) if isinstance(error, StoreError) else type(error).__name__)
    assert outcome.state("kivi").error is None and len(outcome.state("kivi").token_ids) == 12


def _breaking_first(broken: Callable[..., None]) -> Callable[..., None]:
    """Rows.store_tokens that fails for the first lane's forced row."""
    settle = Rows.store_tokens
    return lambda self, row, *rest: broken() if row == 1 else settle(self, row, *rest)


@pytest.mark.slow
def test_windows_follow_the_papers_flush_rule() -> None:
    """Tokens held quantized after every step, from KIVI's definition: keys leave R at a time, values one by one."""
    model, new = tiny("llama"), 40
    lane = Lane(label="kivi", method="kivi", knobs={"group_size": 8, "residual_length": 16})
    for count in (1, 15, 16, 17, 50):
        outcome = run_engine(model, prompt_ids(count), [lane], new, ignore_eos=True)
        cache = outcome.decode.states[0].cache
        assert cache is not None
        held = count + new - 1
        assert [p.stream.packed_tokens for p in cache.of("key")] == [held - held % 16]
        assert [p.stream.packed_tokens for p in cache.of("value")] == [max(0, held - 16)]
        assert all(part.stream.tokens == held for part in cache.parts)


def test_a_packed_cache_made_meanwhile_changes_nothing() -> None:
    """It switches the model to another attention, which runs on the same model go through from then on."""
    model, ids = tiny("llama"), prompt_ids(40)
    before = run_engine(model, ids, LANES[:1], 8, ignore_eos=True)
    packed_cache(model, make("kivi", group_size=8, residual_length=8))
    try:
        after = run_engine(model, ids, LANES[:1], 8, ignore_eos=True)
    finally:
        model.model.set_attn_implementation(ATTENTION)
    for expected, found in zip(before.logits(), after.logits(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
