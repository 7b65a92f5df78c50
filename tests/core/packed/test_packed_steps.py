"""Steps of ``generate`` that are always the same launches, captured; and a cache that is cut back."""

from collections.abc import Callable, Iterator

import pytest
import torch
from kvq_kernels import counting, uncounted
from kvq_kernels.launch import record_launches
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

import kvq_core
from kvq_core.errors import MethodError, ModelError
from kvq_core.models import packed_cache
from kvq_core.models.captured import CapturedStep, captured_steps
from tests.support.tiny_models import prompt_ids, tiny

KIVI = {"residual_length": 32}
INNERQ = {"sink_tokens": 4, "recent_tokens": 8}
METHODS = {"kivi": KIVI, "innerq": INNERQ, "squat": KIVI, "per_channel": KIVI, "per_token": {"residual_length": 8}}


@pytest.fixture
def model() -> Iterator[torch.nn.Module]:
    loaded = tiny("llama").model
    held = loaded.config._attn_implementation
    yield loaded
    loaded.set_attn_implementation(held)


def cache_of(model, name="kivi", path="auto", **knobs):
    return kvq_core.packed_cache(model, kvq_core.make(name, **(METHODS.get(name, {}) | knobs)), path)


def padded(*lengths: int) -> dict[str, torch.Tensor]:
    most = max(lengths)
    rows = [[0] * (most - n) + prompt_ids(n, seed) for seed, n in enumerate(lengths)]
    mask = [[0] * (most - n) + [1] * n for n in lengths]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def answer(model, given, cache, **options):
    torch.manual_seed(7)
    asked = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 12} | options
    return model.generate(**given, past_key_values=cache, **asked)


class HostLooks(TorchDispatchMode):
    """What a captured step may not do: look at a number on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a captured step looks at a number on the host"
        return func(*args, **(kwargs or {}))


def again(forward: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """What a CUDA graph is to a step, without one: the same launches, and nothing of the host's."""

    def played() -> torch.Tensor:
        with HostLooks():
            return forward()

    return played


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("name", list(METHODS))
def test_captured_steps_answer_as_generate_does(model, name):
    given = padded(90, 41, 3)
    expected, cache = answer(model, given, cache_of(model, name)), cache_of(model, name)
    assert torch.equal(answer(model, given, cache, custom_generate=captured_steps), expected)
    assert cache.get_seq_length() == 101


@pytest.mark.slow
def test_captured_steps_sample_stop_and_go_on(model):
    given = padded(40)
    sampled = {
        "do_sample": True,
        "temperature": 1.5,
        "top_k": 20,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    one, other = (
        answer(model, given, cache_of(model), **sampled, **how) for how in ({}, {"custom_generate": captured_steps})
    )
    assert torch.equal(one.sequences, other.sequences)
    assert all(torch.equal(a, b) for a, b in zip(one.scores, other.scores, strict=True))
    stop = int(one.sequences[0, 43])
    cache = cache_of(model)
    ended = {"eos_token_id": stop, "pad_token_id": 0} | sampled | {"return_dict_in_generate": False}
    out = answer(model, given, cache, custom_generate=captured_steps, **ended)
    assert out.shape[1] <= 44 and int(out[0, -1]) == stop
    more = torch.cat([out, torch.tensor([prompt_ids(9, 3)])], 1)
    on = answer(
        model, {"input_ids": more, "attention_mask": torch.ones_like(more)}, cache, custom_generate=captured_steps
    )
    assert on.shape[1] == more.shape[1] + 12 and cache.get_seq_length() == on.shape[1] - 1


def test_what_captured_steps_do_not_do_is_refused(model):
    given = padded(20)
    for cache, options, words in (
        (DynamicCache(), {}, "needs a packed cache"),
        (cache_of(model), {"output_hidden_states": True, "return_dict_in_generate": True}, "gives no hidden_states"),
        (cache_of(model), {"output_attentions": True, "return_dict_in_generate": True}, "gives no attentions"),
        (cache_of(model), {"num_beams": 2}, "num_beams = 2"),
    ):
        with pytest.raises(ModelError, match=words):
            answer(model, given, cache, custom_generate=captured_steps, **options)


@pytest.mark.slow
@pytest.mark.few(sample=1)
@pytest.mark.parametrize("lengths", [(60,), (60, 33)])
def test_300_steps_are_the_same_launches_in_the_same_memory(model, lengths, monkeypatch):
    """While the cache grows by segments and packs; of a graph's own memory the kinds are the same. No mask is made,
    which some versions of transformers ask for while a stream is captured, and whose reading waits for the device."""
    cache, given = cache_of(model, path="triton"), padded(*lengths)
    own = {"q", "out", "k_fresh", "v_fresh"}
    with record_launches() as found, torch.no_grad():
        model(**given, past_key_values=cache, use_cache=True)
        segments = [len(store.pool.segments) for layer in cache.held for store in layer.whole]
        step = CapturedStep(model, cache, torch.tensor([[n] for n in lengths]))
        made = packed_cache.sdpa_mask
        monkeypatch.setattr(
            packed_cache, "sdpa_mask", lambda *a, **k: made(*a, **k) if counting() else pytest.fail("a mask was made")
        )
        step.capture, forms, at = again, list[set[str]](), step.ids.data_ptr()
        for _ in range(300):
            del found[:]
            assert step(torch.zeros(len(lengths), dtype=torch.long)).shape == (len(lengths), model.config.vocab_size)
            forms.append({str([entry.kernel.__name__, *told(entry, own)]) for entry in found})
    assert step.play is not None and step.ids.data_ptr() == at
    assert all(each == forms[1] for each in forms) and len(forms[1]) == 2 * len(cache.held)
    for layer, before in zip(cache.held, zip(segments[::2], segments[1::2], strict=True), strict=True):
        for store, count in zip(layer.whole, before, strict=True):
            rows = [row.tokens for row in store.members]
            assert rows == [n + 300 for n in lengths] and len(store.pool.segments) > count
    assert cache.get_seq_length() == 360 and step.positions[:, 0].tolist() == [n + 300 for n in lengths]


def told(entry, own):
    for name, value in entry.arguments.items():
        if isinstance(value, torch.Tensor):
            yield name, value.data_ptr() % 16 if name in own else value.data_ptr(), value.dtype, tuple(value.shape)
        else:
            yield name, value
    yield from (str(entry.constants), entry.how)


@pytest.mark.slow
def test_addresses_are_multiples_of_16_bytes(model):
    """Whatever is read from a record: codes of its parts, scales, zero-points and words of signs."""
    for name in METHODS:
        cache = cache_of(model, name)
        answer(model, padded(90, 41), cache)
        for layer in cache.held:
            for store in layer.whole:
                for segment in store.pool.segments:
                    assert segment.data_ptr() % 16 == 0 and store.form.nbytes % 16 == 0
                form = store.form
                starts = [form.step * part for part in range(form.parts)] + [section.start for section in form.meta]
                assert not any(start % 16 for start in starts)


@pytest.mark.slow
@pytest.mark.few(sample=2)
@pytest.mark.parametrize("name", [*METHODS, "svdq"])
def test_guesses_that_failed_leave_nothing_behind(model, name):
    """Prompt lookup is greedy decoding, to the byte; its first call even reads guesses together with the prompt."""
    ids = torch.tensor([prompt_ids(20) * 4])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    plain, guessed = cache_of(model, name), cache_of(model, name)
    expected = answer(model, given, plain, max_new_tokens=24)
    cuts = []
    for each in guessed.layers:
        each.crop = lambda n, real=each.crop: cuts.append(n) or real(n)
    found = answer(model, given, guessed, max_new_tokens=24, prompt_lookup_num_tokens=4)
    assert torch.equal(found, expected) and any(cuts)
    assert guessed.nbytes == plain.nbytes and guessed.get_seq_length() == plain.get_seq_length()


def test_only_the_last_call_is_cut_back_and_only_when_that_was_asked_for(model):
    given = padded(40)
    cache = cache_of(model)
    answer(model, given, cache, max_new_tokens=1)
    with pytest.raises(ModelError, match=r"activate_past_recording\(\).*3 to be removed, 0 kept"):
        cache.crop(-3)
    cache.activate_past_recording()
    before, fresh = cache.nbytes, torch.tensor([prompt_ids(6)])
    with torch.no_grad():
        model(fresh, past_key_values=cache)
        with pytest.raises(ModelError, match="7 to be removed, 6 kept"):
            cache.crop(-7)
        cache.crop(44)  # as older versions ask: what is to be left
        cache.crop(0)
        assert cache.get_seq_length() == 44
        other = cache_of(model)
        model(given["input_ids"], past_key_values=other)
        other.activate_past_recording()
        model(fresh[:, :4], past_key_values=other)
        assert cache.nbytes == other.nbytes > before
        cache.crop(-4)
        assert cache.get_seq_length() == 40 and cache.nbytes == before
    watching = cache_of(model, "qaq", update="every_step", key_tolerance=0.5, value_tolerance=0.5)
    watching.activate_past_recording()
    with pytest.raises(MethodError, match="cannot be cut back"):
        answer(model, given, watching)


def test_a_step_is_counted_by_whoever_plays_it(model):
    cache = cache_of(model, path="triton")
    with record_launches(), torch.no_grad():
        model(**padded(40), past_key_values=cache)
        with uncounted():
            model(torch.tensor([[5]]), position_ids=torch.tensor([[40]]), past_key_values=cache)
    assert cache.get_seq_length() == 40
