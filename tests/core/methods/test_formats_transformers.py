"""quanto and hqq against transformers' own QuantizedCache, element by element, over several rounds of quantization."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from transformers.cache_utils import HQQQuantizedLayer, QuantoQuantizedLayer

from kvq_core.codecs.stream import Stream
from kvq_core.errors import MethodError
from kvq_core.methods import ModelShape, Prompt, make
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.quanto import compile_nothing
from tests.support.tiny_models import prompt_ids, tiny

SHAPE = ModelShape(layers=2, query_heads=4, kv_heads=2, head_dim=32, context=1024)
THEIRS = {"quanto": QuantoQuantizedLayer, "hqq": HQQQuantizedLayer}
CASES = [
    ("quanto", {"bits": 4}),
    ("quanto", {"bits": 2}),
    ("quanto", {"bits": 4, "axis": -1, "group_size": 32}),
    ("quanto", {"bits": 2, "group_size": 16}),
    ("hqq", {"bits": 4}),
    ("hqq", {"bits": 3}),
    ("hqq", {"bits": 2}),
    ("hqq", {"bits": 1}),
    ("hqq", {"bits": 8}),
    ("hqq", {"bits": 4, "axis": 1}),
    ("hqq", {"bits": 2, "axis": 1, "group_size": 32}),
    ("hqq", {"bits": 8, "axis": 1}),
]


@pytest.fixture(scope="module", autouse=True)
def nothing_is_compiled():
    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        yield


def tensors(tokens, layers=2, kv_heads=2, head_dim=32, seed=3):
    """Keys with a channel that is large in all tokens, and values: (layers, kv_heads, tokens, head_dim) in fp16."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(layers, kv_heads, tokens, head_dim, generator=generator) for _ in range(2))
    keys[..., 5] += 12
    return keys.half(), values.half()


def fitted(name, knobs, keys, values, metadata=torch.float16):
    return make(name, **knobs).fit(Prompt(keys.float(), values.float(), None, metadata))


def theirs(name, knobs, residual):
    bits, axis, group = knobs.get("bits", 4), knobs.get("axis", 0), knobs.get("group_size", 64)
    return THEIRS[name](bits, axis, axis, group, residual)


def held(layer, stored, window):
    """What a layer of transformers would give attention next."""
    parts = [layer._dequantize(stored)] + ([window] if window.numel() else [])
    return torch.cat(parts, -2)[0]


@pytest.mark.few(sample=4)
@pytest.mark.parametrize(("name", "knobs"), CASES, ids=lambda x: x if isinstance(x, str) else str(x))
def test_every_step_reads_what_transformers_reads(name, knobs):
    prompt, residual, steps = 64, 16, 52
    keys, values = tensors(prompt + steps)
    own = fitted(name, knobs, keys[..., :prompt, :], values[..., :prompt, :])
    windows = make(name, **{**knobs, "residual_length": residual}).windows()
    streams = [
        Stream.of_prompt(x[..., :prompt, :].float(), window, codec)
        for x, window, codec in zip((keys, values), windows, (own.key, own.value), strict=True)
    ]
    layers = [theirs(name, knobs, residual) for _ in keys]
    for i, layer in enumerate(layers):
        layer.update(keys[i : i + 1, :, :prompt], values[i : i + 1, :, :prompt])
    rounds = 0
    for at in range(prompt, prompt + steps):
        for i, layer in enumerate(layers):
            layer.update(keys[i : i + 1, :, at : at + 1], values[i : i + 1, :, at : at + 1])
        for stream, x in zip(streams, (keys, values), strict=True):
            stream.append(x[..., at : at + 1, :].float())
            changes = stream.flush()
            rounds += len(changes)
            for start, new in changes:  # all of it is told anew
                assert start == 0 and torch.equal(new, stream.decode()[..., : new.shape[-2], :])
        for stream, stored, window in zip(
            streams, ("_quantized_keys", "_quantized_values"), ("keys", "values"), strict=True
        ):
            wanted = torch.stack([held(layer, getattr(layer, stored), getattr(layer, window)) for layer in layers])
            assert torch.equal(stream.decode(), wanted.float())
            assert stream.packed_tokens == prompt + (at + 1 - prompt) // residual * residual
    assert rounds == 2 * (steps // residual)


@pytest.mark.parametrize(
    ("name", "knobs", "expected"),
    [
        ("quanto", {"bits": 4}, 4.5),
        ("quanto", {"bits": 2}, 2.5),
        ("hqq", {"bits": 1}, 1.5),
        ("hqq", {"bits": 2}, 2.5),
        ("hqq", {"bits": 3}, 4.0),
        ("hqq", {"bits": 4, "axis": 1}, 4.5),
        ("hqq", {"bits": 8}, 8.5),
    ],
)
def test_bits_are_those_of_the_tensors_that_a_backend_keeps(name, knobs, expected):
    keys, values = tensors(128)
    codec = fitted(name, knobs, keys, values).key
    block = codec.encode_prompt(keys.float(), 0)
    assert codec.bits(block).item() == expected == 8 * sum(block.nbytes.values()) / keys.numel()
    full = fitted(name, knobs, keys, values, torch.float32).key  # as in a float32 model
    assert full.bits(full.encode_prompt(keys.float(), 0)).item() == expected + 0.5


@pytest.mark.parametrize(("bits", "expected"), [(4, 8.05e-3), (2, 0.203)])
def test_quantos_error_on_a_normal_distribution(bits, expected):
    x = torch.randn(1, 1, 8192, 128, generator=torch.Generator().manual_seed(1))
    codec = fitted("quanto", {"bits": bits}, x, x).key
    error = (codec.decode(codec.encode_prompt(x, 0)) - x).square().mean() / x.square().mean()
    assert error.item() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("bits", [4, 2])
def test_quantos_codes_are_read_without_its_compiler(bits, monkeypatch):
    from optimum.quanto import library

    keys, values = tensors(64)
    codec = fitted("quanto", {"bits": bits}, keys, values).key
    block = codec.encode_prompt(keys.float(), 0)
    expected = codec.decode(block)
    monkeypatch.setattr(library.extensions.cpp.ext, "_lib", SimpleNamespace())  # has no unpack
    assert torch.equal(codec.decode(block), expected)


def drift(name, knobs, rounds):
    """Relative squared error of a prompt's tokens after so many rounds of quantization."""
    prompt, residual = 128, 16
    x, _ = tensors(prompt + rounds * residual, layers=1, head_dim=64)
    x[..., 5] -= 12
    codec = fitted(name, knobs, x[..., :prompt, :], x[..., :prompt, :], torch.float32).key
    window = make(name, **{**knobs, "residual_length": residual}).windows()[0]
    stream = Stream.of_prompt(x[..., :prompt, :].float(), window, codec)
    for at in range(prompt, x.shape[-2]):
        stream.append(x[..., at : at + 1, :].float())
        stream.flush()
    own = x[..., :prompt, :].float()
    return ((stream.decode()[..., :prompt, :] - own).square().sum() / own.square().sum()).item()


def test_errors_add_up_on_hqqs_axis_0_alone():
    first, last = (drift("hqq", {"bits": 4}, rounds) for rounds in (0, 10))
    assert last > 4 * first
    for name, knobs in (("quanto", {"bits": 4}), ("hqq", {"bits": 4, "axis": 1})):
        assert drift(name, knobs, 10) == pytest.approx(drift(name, knobs, 0), rel=0.02)
    keys, values = tensors(64)
    assert "errors add up" in fitted("hqq", {}, keys, values).notes[0]
    assert fitted("hqq", {"axis": 1}, keys, values).notes == ()


def test_what_fails_in_a_backend_is_refused_with_the_reason():
    def refused(name, shape=SHAPE, **knobs):
        return make(name, **knobs).why_not(shape)

    wide = ModelShape(layers=2, query_heads=3, kv_heads=3, head_dim=64, context=1024)
    assert refused("quanto") is refused("hqq") is refused("hqq", axis=1) is None
    assert "cannot read 3-bit codes of axis 1" in refused("hqq", bits=3, axis=1)
    assert "group_size = 128 does not divide the 2 x 32 elements" in refused("quanto", group_size=128)
    assert "residual_length = 100" in refused("quanto", axis=-1, residual_length=100)
    assert "residual_length = 33: axis = 1 packs" in refused("hqq", wide, axis=1, residual_length=33)
    keys, values = tensors(43)
    for name, knobs, reason in (
        ("quanto", {"axis": -1}, "2 x 43 rows"),
        ("hqq", {"axis": 1}, "2 divides the 43 of 43 tokens"),
    ):
        codec = fitted(name, knobs, keys, values).key
        with pytest.raises(MethodError, match=reason):
            codec.encode_prompt(keys.float(), 0)
        layer = theirs(name, knobs, 128)
        with pytest.raises((ValueError, RuntimeError)):  # and theirs does fail
            layer.update(keys[:1], values[:1])
    broken = theirs("hqq", {"bits": 3, "axis": 1}, 128)
    broken.update(*(x[:1] for x in tensors(64)))
    with pytest.raises(RuntimeError):
        broken._dequantize(broken._quantized_keys)


def test_a_missing_package_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "kvq_core.methods.formats.quantized_cache.find_spec",
        lambda name: None if name.split(".")[0] in ("optimum", "einops") else find(name),
    )
    assert make("quanto").why_not(SHAPE).endswith("run: pip install --no-deps optimum-quanto")
    assert make("hqq").why_not(SHAPE) == "it needs the package einops; run: pip install --no-deps einops"


@pytest.mark.parametrize(("name", "knobs"), [("quanto", {}), ("hqq", {}), ("hqq", {"axis": 1, "bits": 8})])
def test_constants_and_single_tokens_are_stored(name, knobs):
    for tokens in (1, 2, 7):
        for x in (torch.zeros(1, 2, tokens, 64), torch.full((1, 2, tokens, 64), -3.5)):
            codec = fitted(name, knobs, x, x).key
            torch.testing.assert_close(codec.decode(codec.encode_prompt(x, 0)), x)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", ["full", "40 raw"])
def test_lanes_hold_what_attention_reads_of_them_after_rounds(chunk):
    """Prompts at once, and in chunks, of which the last waits in the window where it is short."""
    lanes = [
        Lane(label=f"{name} {knobs}", method=name, knobs={**knobs, "residual_length": 16}, prefill=chunk)
        for name, knobs in (("quanto", {}), ("hqq", {}), ("hqq", {"axis": 1, "bits": 8}))
    ]
    outcome = run_engine(tiny("qwen2"), prompt_ids(90), lanes, 40, audit=True, ignore_eos=True)
    for state in outcome.decode.states:
        assert state.error is None
        for part in state.cache.parts:
            # of 90 tokens in chunks of 40 the last 10 wait
            assert part.stream.packed_tokens == (90 + 39 // 16 * 16 if chunk == "full" else 80 + 49 // 16 * 16)
