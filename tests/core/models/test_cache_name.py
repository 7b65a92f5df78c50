"""What transformers calls the cache, of the version that is installed and of the other one."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, modeling_outputs
from transformers.generation import GenerateDecoderOnlyOutput

import kvq_core
from kvq_core.errors import ModelError
from kvq_core.models import captured
from kvq_core.models.cache_name import NAMES, cache_name, given_cache
from tests.support.tiny_models import prompt_ids, tiny


def of_5_23():
    @dataclass
    class Output:
        past_key_values: Any = None

    return Output


def of_5_24():
    """Where the old name is left as a property."""

    @dataclass
    class Output:
        cache: Any = None
        past_key_values = property(lambda self: self.cache)

    return Output


@pytest.mark.parametrize(("version", "name"), [(of_5_23, "past_key_values"), (of_5_24, "cache")])
def test_outputs_tell_the_name(monkeypatch, version, name):
    monkeypatch.setattr(modeling_outputs, "BaseModelOutputWithPast", version())
    cache_name.cache_clear()
    try:
        assert cache_name() == name
    finally:
        cache_name.cache_clear()


def test_models_and_outputs_of_the_installed_version_take_it():
    assert cache_name() in inspect.signature(LlamaForCausalLM.forward).parameters
    given = {"sequences": None, cache_name(): "it"}
    assert getattr(GenerateDecoderOnlyOutput(**given), cache_name()) == "it"


class OtherVersion:
    """A model whose forward pass takes the cache by the other name alone."""

    def __init__(self, model: torch.nn.Module, name: str):
        self.model, self.name, self.config = model, name, model.config

    def __call__(self, **given: Any) -> Any:
        assert cache_name() not in given
        return self.model(**{cache_name(): given.pop(self.name)}, **given)


def test_steps_are_the_same_under_the_other_name(monkeypatch):
    other = next(name for name in NAMES if name != cache_name())
    model, ids = tiny("llama").model, torch.tensor([prompt_ids(40)])
    held, found = model.config._attn_implementation, []

    def steps(model: Any, *given: Any, **named: Any) -> Any:
        named[other] = named.pop(cache_name())
        with monkeypatch.context() as patched:
            patched.setattr(captured, "cache_name", lambda: other)
            return captured.captured_steps(OtherVersion(model, other), *given, **named)

    try:
        for how in (captured.captured_steps, steps):
            cache = kvq_core.packed_cache(model, kvq_core.make("kivi", residual_length=32))
            options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 4, "custom_generate": how}
            found.append(model.generate(ids, attention_mask=torch.ones_like(ids), **{cache_name(): cache}, **options))
    finally:
        model.set_attn_implementation(held)
    assert torch.equal(*found)
    with pytest.raises(ModelError, match=f"needs a packed cache as {cache_name()}, not NoneType"):
        captured.captured_steps(model, ids, None, None, None)


def test_a_cache_is_found_by_either_name():
    assert [given_cache({name: 1}) for name in NAMES] == [1, 1]
    assert given_cache({"cache": None, "past_key_values": 2}) == 2 and given_cache({}) is None


def test_a_packed_cache_can_be_cut_back_once_it_keeps_its_last_call():
    """What assisted generation asks, which refuses other caches."""
    held = tiny("llama").model.config._attn_implementation
    cache = kvq_core.packed_cache(tiny("llama").model, kvq_core.make("kivi", residual_length=32))
    tiny("llama").model.set_attn_implementation(held)
    assert not cache.is_croppable
    cache.activate_past_recording()
    assert cache.is_croppable
