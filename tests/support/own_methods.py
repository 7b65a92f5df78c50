"""Method files as people write them, whole and broken, and a registry that forgets them."""

import re
from pathlib import Path

import pytest
import torch

from kvq_core.methods import ModelRef, known

REF = ModelRef("some/model", "0" * 16)
PAGE = Path(__file__).parents[2] / "docs" / "own_method.md"


def tensors(tokens: int = 20, dim: int = 32) -> torch.Tensor:
    """(2, 2, tokens, dim)."""
    return torch.randn(2, 2, tokens, dim, generator=torch.Generator().manual_seed(0))


def example(name: str) -> str:
    """A file of the page on methods of one's own."""
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))[name]


# a method with one thing to go wrong in each place: {bits}, {encode}, {decode}, {fit}, {body}, {top}
TEMPLATE = '''
from typing import ClassVar
import torch
from kvq_core.methods import Block, Codec, Fitted, Method, Window
{top}

class Halves(Codec):
    def encode(self, x, start):
        {encode}
        return Block(x.shape[-2], {{"halves": x.half()}})

    def decode(self, block):
        {decode}
        return block.tensors["halves"].float()

    def bits(self, block):
        return torch.full((1, 1, 1, 1), float({bits}))


class Mine(Method):
    """Halves."""
    name: ClassVar[str] = "{name}"
    title: ClassVar[str] = "Mine"

    def windows(self):
        return Window(), Window()

    def fit(self, prompt):
        {fit}
        return Fitted(Halves(), Halves())

    {body}
'''
WELL = {"name": "mine", "top": "", "encode": "", "decode": "", "bits": 16, "fit": "", "body": ""}


def written(folder: Path, file: str = "my.py", **changes: object) -> Path:
    """A method file with something changed."""
    path = folder / file
    path.write_text(TEMPLATE.format(**{**WELL, **changes}), encoding="utf-8")
    return path


def forget_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered from here on is gone with the test."""
    known.methods()  # entry points are looked at once
    monkeypatch.setattr(known._own, "found", {})
    monkeypatch.setattr(known._own, "failures", {})
    monkeypatch.setattr(known._own, "view", None)
