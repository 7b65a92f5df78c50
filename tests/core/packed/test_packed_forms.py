"""How a codec says what it is packed: what nobody said is refused, and what a subclass changes is never lost."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from kvq_kernels import paths_taken

from kvq_core.codecs.codec import Codec
from kvq_core.codecs.groups import GroupCodec
from kvq_core.errors import MethodError
from kvq_core.methods import Fitted, Window, methods
from kvq_core.methods import known as known_methods
from kvq_core.methods.per_channel import PerChannel
from kvq_core.methods.per_token import PerToken
from kvq_core.packed.tensors import StreamSide, side_of
from kvq_core.spec import Lane
from tests.core.packed.test_packed_methods import ATOL, forced_logits
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

PAGE = Path(__file__).parents[3] / "docs" / "methods.md"


@pytest.fixture
def known(monkeypatch):
    """Makes a method known as if its file lay among the others."""

    def register(method):
        monkeypatch.setitem(known_methods._own.found, method.name, method)
        monkeypatch.setattr(known_methods._own, "view", None)
        return method

    return register


def compared(name, **knobs):
    """Logits of the engine's forced row and of the packed cache, the lane's bytes and those held packed."""
    model, ids = tiny("llama"), prompt_ids(90)
    lane = Lane(label=name, method=name, knobs=knobs)
    outcome = run_engine(model, ids, [lane], 8, ignore_eos=True)
    logits, layers = forced_logits(model, ids, lane, outcome.decode.token_ids[:-1])
    stored = sum(sum(part.stream.nbytes().values()) for part in outcome.state(name).cache.parts)
    return outcome.logits()[1][0], logits, stored, sum(layer.nbytes for layer in layers)


def example():
    """Names of the documented example's file."""
    (code,) = re.findall(r"<!-- file: kvq_core/methods/\w+\.py -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {"__name__": "example"}
    exec(code, names)  # noqa: S102
    return names


@pytest.mark.slow
def test_the_documented_example_is_packed_as_its_lane_is(known):
    method = known(example()["Centred"])
    with paths_taken() as taken:
        lane, packed, stored, held = compared(method.name, bits=2, residual_length=8)
    torch.testing.assert_close(packed, lane, rtol=0, atol=ATOL)
    assert held == stored and taken["decode"] == {"torch"}
    plain = compared("per_token", bits=2, residual_length=8)
    assert (packed - plain[1]).abs().max() > 100 * ATOL and held > plain[3]


def test_a_codec_that_does_not_say_how_it_is_packed_is_refused(known):
    names = example()

    @dataclass(frozen=True)
    class Silent(names["CentredCodec"]):
        pass

    class Quiet(names["Centred"]):
        name: ClassVar[str] = "quiet"

        def fit(self, prompt):
            fitted = super().fit(prompt)
            return Fitted(Silent(**vars(fitted.key)), fitted.value)

    known(Quiet)
    with pytest.raises(MethodError, match=r"^Silent has no packed execution: .* define its packed\(\)\.$"):
        compared("quiet")


def codecs():
    methods()  # imports them all
    found, pending = [], [Codec]
    while pending:
        pending += pending[0].__subclasses__()
        found.append(pending.pop(0))
    return [cls for cls in found if cls.__module__.startswith("kvq_core.methods")]


@pytest.mark.parametrize("parent", codecs(), ids=lambda cls: cls.__name__)
def test_no_codec_inherits_a_form(parent):
    class Own(parent):
        def decode(self, block):
            return -super().decode(block)

    class Taken(parent):
        packed = parent.packed

    class Next(Taken):
        pass

    assert Own.packed is Codec.packed is Next.packed and Taken.packed is parent.packed


@pytest.mark.parametrize("space", ["post", "pre"])
@pytest.mark.parametrize("parent", [PerToken, PerChannel])
def test_groups_of_a_prompt_alone_are_read_as_keys_too(parent, space, known):
    """In blocks: a store takes tokens that leave one after another."""

    class Prompt(parent):
        name: ClassVar[str] = "prompt"
        key_space: ClassVar[str] = space

        def windows(self):
            window = Window(recent=0, step=32, prompt_only=True)
            return window, window

    known(Prompt)
    lane, packed, stored, held = compared("prompt", bits=2)
    torch.testing.assert_close(packed, lane, rtol=0, atol=ATOL)
    assert held == stored


def test_what_groups_share_is_counted():
    x, shared = torch.randn(1, 2, 64, 32), {"mean": torch.zeros(1, 2, 1, 32).half()}
    plain, more = (
        side_of(GroupCodec(4, 32, "channels", shared=tensors), Window(), x, None, "auto") for tensors in ({}, shared)
    )
    assert isinstance(more, StreamSide) and more.nbytes == plain.nbytes + 2 * 2 * 32
    q = torch.randn(1, 2, 3, 32)
    torch.testing.assert_close(more.scores(q), plain.scores(q))
