"""Methods from functions: a lane like any other, bytes by the bits they declare, and what they do wrong."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvq_core
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import known, load_method_file, methods, origin_of
from kvq_core.methods.function import fingerprint
from kvq_core.packed import MeasureRequest, measure
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.own_methods import REF, forget_afterwards, tensors
from tests.support.tiny_models import prompt_ids, tiny


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    forget_afterwards(monkeypatch)


def per_token(keys, values):
    """Four bits a token and group of 8."""

    def stored(x):
        parts = x.unflatten(-1, (-1, 8))
        low = parts.amin(-1, keepdim=True).half()
        step = ((parts.amax(-1, keepdim=True).half().float() - low.float()) / 15).half()
        codes = ((parts - low.float()) / step.float()).round().clamp(0, 15)
        return (codes * step.float() + low.float()).flatten(-2)

    return stored(keys), stored(values)


def test_a_function_runs_as_a_lane_for_the_prompt_and_every_token_after_it():
    seen = []

    def watched(keys, values):
        seen.append(tuple(keys.shape))
        return per_token(keys, values)

    lane = kvq_core.from_function(watched, bits=8)
    outcome = run_engine(tiny("llama"), prompt_ids(30), [lane], 5, audit=True, ignore_eos=True)
    assert outcome.decode.states[0].error is None
    assert {shape[-2] for shape in seen} == {30, 1} and {shape[:2] for shape in seen} == {(3, 2)}
    for part in outcome.decode.states[0].cache.parts:
        assert part.stream.packed_tokens == 34 and part.stream.nbytes() == {"declared": 3 * 2 * 34 * 32}


@given(bits=st.floats(0.25, 32), tokens=st.integers(1, 9))
def test_bytes_are_those_of_the_declared_bits(bits, tokens):
    before = dict(known._own.found)
    try:
        lane = kvq_core.from_function(lambda k, v: (k, v), bits=(bits, 16))
        keys, values = tensors(tokens, 8)
        found = kvq_core.roundtrip(lane.build(), keys, values)
        assert found.nbytes == {"key_declared": math.ceil(2 * tokens * 8 * bits / 8), "value_declared": 32 * tokens}
        assert np.array_equal(found.keys.numpy(), keys.numpy())
    finally:
        known._own.found, known._own.view = before, None


def test_declared_bits_are_said_and_nothing_is_packed():
    lane = kvq_core.from_function(per_token, bits=(5, 4))
    method = lane.build()
    assert lane.label == lane.method == "per_token_2"  # per_token is a method of the project
    assert method.summary() == "K5 V4 bits declared, not counted"
    outcome = run_engine(tiny("llama"), prompt_ids(12), [lane], 2)
    assert outcome.decode.states[0].cache.notes == ("K5 V4 bits declared, not counted", "from a function")
    with pytest.raises(MethodError, match=r"per_token_2 \(a function\): bits declared, not counted: .*nothing packed"):
        measure(tiny("llama"), lane, prompt_ids(12), MeasureRequest(new_tokens=3))


def test_keys_and_values_that_depend_on_each_other_go_together_or_not_at_all():
    def joint(keys, values):
        return keys + values.mean(-2, keepdim=True), values

    keys, values = tensors(9)
    with pytest.raises(MethodError, match="makes of keys depends on the values, or on chance; with together=True"):
        kvq_core.roundtrip(kvq_core.from_function(joint, bits=4).build(), keys, values)
    lane = kvq_core.from_function(joint, bits=4, together=True)
    found = kvq_core.roundtrip(lane.build(), keys, values, windows=True)
    wanted = keys.numpy() + values.numpy().mean(-2, keepdims=True)
    np.testing.assert_allclose(found.keys.numpy(), wanted, rtol=1e-6)
    outcome = run_engine(tiny("llama"), prompt_ids(20), [lane], 4, audit=True, ignore_eos=True)
    assert [p.stream.packed_tokens for p in outcome.decode.states[0].cache.parts] == [20, 20]  # the others in fp16
    with pytest.raises(SpecError, match="takes the whole prompt"):
        Lane(method=lane.method, prefill={"chunk": 8})


def test_tokens_are_handed_over_in_the_size_that_was_asked_for():
    sizes = []

    def watched(keys, values):
        sizes.append(keys.shape[-2])
        return keys, values

    run_engine(tiny("llama"), prompt_ids(30), [kvq_core.from_function(watched, bits=4, tokens=8)], 12, ignore_eos=True)
    assert set(sizes) == {30, 24, 8}  # fit looks at all of the prompt, 24 are stored, then 8 whenever there are 8


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda k, v: k, "odd (a function): the function gave no pair of tensors (keys, values)"),
        (lambda k, v: (k[..., :3], v), "odd (a function): the function gave keys (1, 2, 9, 3) for (1, 2, 9, 32)"),
        (lambda k, v: (k, v / 0 * 0), "odd (a function): the function gave values that are NaN or infinite"),
        (lambda k, v: [][1], "odd (a function): IndexError: list index out of range"),
        (lambda k, v: (k + torch.rand(()), v), "odd (a function): what its function makes of keys depends on"),
    ],
)
def test_what_a_function_does_wrong_is_one_line(function, said):
    with pytest.raises(MethodError) as refusal:
        kvq_core.roundtrip(kvq_core.from_function(function, bits=4, name="odd").build(), *tensors(9))
    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize("bits", [0, -1, 33, "4", None, (4,), (4, 0), float("nan"), True])
def test_bits_that_cannot_be_are_refused(bits):
    with pytest.raises(SpecError, match="bits = .* is not allowed"):
        kvq_core.from_function(per_token, bits=bits)


def test_one_function_is_one_lane_and_another_is_another():
    lane = kvq_core.from_function(per_token, bits=4, name="mine")
    assert kvq_core.from_function(per_token, bits=4, name="mine") == lane
    other = kvq_core.from_function(per_token, bits=5, name="mine")
    assert other.method == "mine_2" and lane.build().data_hash(REF) != other.build().data_hash(REF)
    assert kvq_core.from_function(lambda k, v: (k, v), bits=4).method == "lambda"


def test_fingerprints_tell_functions_apart_by_what_they_compute():
    def rounded(step):
        return lambda k, v: ((k / step).round() * step, v)

    held = torch.ones(1)
    assert fingerprint(rounded(0.5)) == fingerprint(rounded(0.5)) != fingerprint(rounded(0.25))
    assert fingerprint(lambda k, v: (k, v)) != fingerprint(lambda k, v: (v, k))
    assert fingerprint(lambda k, v: per_token(k, v)) != fingerprint(lambda k, v: tensors(k, v))
    assert fingerprint(lambda k, v: (k * held, v)) != fingerprint(lambda k, v: (k * held, v))  # it could be anything


def test_a_method_file_may_hand_over_functions(tmp_path):
    (tmp_path / "f.py").write_text(
        "import kvq_core\nkvq_core.from_function(lambda k, v: (k, v), bits=3, name='plain')\n"
    )
    assert load_method_file(tmp_path / "f.py") == ("plain",)
    assert origin_of(methods()["plain"]).words == "f.py"
