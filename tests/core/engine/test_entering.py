"""What a codec is given of generated tokens: fp16, or, where an engine quantizes what was computed, that."""

import pytest
import torch

from kvq_core.codecs.stream import Stream
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods import Prompt, make
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

COMPUTED = {"q8_0", "q5_1", "q4_0", "iq4_nl", "q6_0"}
TOKENS, NEW = 40, 49


@pytest.mark.slow
@pytest.mark.parametrize("prefill", ["full", {"chunk": 16, "own_chunk": "stored"}, {"chunk": 16, "own_chunk": "raw"}])
@pytest.mark.parametrize("name", [*sorted(COMPUTED), "int4_per_token_head", "exl3", "int8_per_token_head"])
def test_tokens_are_stored_from_what_the_model_computed_where_the_engine_does(name: str, prefill: object) -> None:
    """Keys and values of the first layer depend on no cache: they are those of one pass in full precision. A row of a
    token is the codec's own of that token alone."""
    model, ids = tiny("llama"), prompt_ids(TOKENS + NEW)
    lane = Lane(label="x", method=name, prefill=prefill)
    state = run_engine(model, ids[:TOKENS], [lane], NEW, follow=ids[TOKENS:], ignore_eos=True).state("x")
    assert state.error is None and state.cache is not None
    whole = SharedPrefill(model, ids)
    list(whole.run())
    for part in state.cache.parts:
        x = (whole.groups[0].keys if part.kind == "key" else whole.groups[0].values)[:1].float()
        codec, end = part.stream.codec, TOKENS + NEW - 1
        held = part.stream.decode()[0, :, TOKENS:end]
        computed, rounded = (
            codec.decode(codec.encode(x.expand(3, -1, -1, -1)[..., TOKENS:end, :].to(of).float(), TOKENS))[0]
            for of in (torch.float32, torch.float16)
        )
        apart, of_other = (float((held - y).abs().max()) for y in (computed, rounded))
        if name not in COMPUTED:
            apart, of_other = of_other, apart
        assert apart < 1e-5 and of_other > 10 * apart, (part.kind, apart, of_other)


@pytest.mark.slow
@pytest.mark.parametrize("window", [{"recent_tokens": 8}, {"sink_tokens": 4}])
def test_a_window_holds_tokens_in_fp16_whatever_their_codec_takes(window: dict[str, int]) -> None:
    """Of two prompts: one shorter than the window, one longer."""
    model, ids = tiny("llama"), prompt_ids(TOKENS + NEW)
    for tokens in (3, TOKENS):
        lane = Lane(label="x", method="q8_0", prefill="deployed", **window)
        state = run_engine(model, ids[:tokens], [lane], NEW, follow=ids[tokens : tokens + NEW]).state("x")
        assert state.error is None and state.cache is not None
        for part in state.cache.parts:
            held = part.stream.sinks if "sink_tokens" in window else part.stream.recent
            assert held.dtype == torch.float16 and held.shape[-2] == next(iter(window.values()))


def test_bf16_holds_what_fp16_cannot() -> None:
    fitted = make("bf16").fit(Prompt(torch.ones(1, 1, 4, 8), torch.ones(1, 1, 4, 8), None))
    stream = Stream.of_prompt(torch.ones(1, 1, 4, 8), make("bf16").windows()[0], fitted.key)
    assert stream.enter(torch.full((1, 1, 1, 8), 2.0**17), prompt=False)[1].unique().tolist() == [2.0**17]
