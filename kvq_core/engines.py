"""What is known of each engine that serves quantized caches: data of presets, a row an engine.

A release stands under ``first`` where it takes the word and the one before it does not, as the archives of both on the
package index say; llama.cpp and ik_llama.cpp have builds only: the day and the pull request.
"""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from kvq_core.frozen import Frozen
from kvq_core.shape import ModelShape
from kvq_core.shipped import shipped

FILE = shipped("sizing", "engines.toml")
UNRELEASED = "no release"  # has it: a fork, or an open pull request


class Engine(Frozen):
    """``command``: how it is told its cache, with {keys} and {values}, or with {both} where it has one format for the
    two. ``policies``: which formats of single layers it loads: fp16 for those it is told to ``skip``, one format
    ``each`` for keys and values, or others at both ``ends``; None: not known. ``plain``: its word for a cache that is
    not quantized; None: it cannot have that beside a quantized one. ``skip``: what comes before the layers that it
    leaves unquantized; None: all layers are alike. ``mixed``: whether it stores so beside layers of another kind than
    full attention. ``scales``: its words of formats whose scales a checkpoint brings, else they are 1. ``marks``: what
    names it in a command, ``also``: other words that it takes for its own, ``first``: the release that has a word, or a
    flag, first.

    How it sets aside memory: ``block``: tokens of a page, or that cells are padded to; ``windows``: what layers with a
    window are given: pages of a window and of the tokens in flight, all tokens (whole), or cells of a window and of
    ``chunk`` new tokens in the families that its code windows, some with that many layers alone; None, or a family that
    is not there: not known. ``batched_tokens``: new tokens that it reads at once, by the GiB that a card has at least,
    and ``batches`` of them in flight; ``states``: how it holds states, None where that is not known; ``latent``: its
    words of the formats that it has for MLA, None: all; ``tensors``: it takes what its tensors do.

    It reads a prompt ``chunk`` tokens at a time, or as many as ``batched_tokens`` say; 0: not known.

    ``source``: file and line in its own source at ``version``; ``evidence``: what others published of it."""

    version: str
    command: str
    plain: str | None = None
    skip: str | None = None
    policies: Literal["skip", "each", "ends"] | None = None
    mixed: bool = True
    scales: tuple[str, ...] = ()
    marks: str | None = None
    also: dict[str, str] = {}
    first: dict[str, str] = {}
    block: int
    windows: Literal["pages", "whole"] | dict[str, bool | int] | None = None
    chunk: int = 0
    batched_tokens: tuple[tuple[int, int], ...] = ()
    batches: int = 1
    states: Literal["pages", "float32"] | None = None
    latent: tuple[str, ...] | None = None
    tensors: bool = False
    source: dict[Literal["flags", "words", "prefill", "windows", "reserve"], str]
    evidence: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether keys and values have formats of their own."""
        return "{keys}" in self.command

    def reads_at_once(self, memory: int | None) -> int | None:
        """New tokens, on a card with so many bytes, one of the smallest where that is not known; None where what it
        sets aside does not hang on them."""
        card = (memory or 0) / 2**30
        return next((tokens for least, tokens in self.batched_tokens if card >= least), None)

    @property
    def prompt_chunk(self) -> int:
        """Tokens of a prompt that it reads at once, on a small card; 0 where that is not known."""
        return self.chunk or self.reads_at_once(None) or 0

    def in_windows(self, shape: ModelShape) -> bool | None:
        """Whether its layers with a window hold no more than that; None where that is not known."""
        if not isinstance(self.windows, dict):
            return None if self.windows is None else self.windows == "pages"
        found = self.windows.get(shape.architecture)
        return found if found is None or isinstance(found, bool) else found == shape.layers


class Front(Frozen):
    """A server that has formats of an ``engine``: its ``words`` for those, and where its own ``source`` has them."""

    engine: str
    version: str
    source: str
    words: dict[str, str]


@cache
def front_ends() -> dict[str, Front]:
    return {name: Front.model_validate(each) for name, each in engine_data()["front"].items()}


@cache
def engine_data() -> dict[str, Any]:
    """Engines by their names, and what is left beside weights and cache."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def engines() -> dict[str, Engine]:
    return {name: Engine.model_validate(each) for name, each in engine_data()["engine"].items()}


def first_release(engine: str, word: str) -> str | None:
    """Of an engine with what its command calls ``word``; None where it is not known."""
    found = engines().get(engine)
    return None if found is None else found.first.get(word)


def latest(releases: Sequence[str | None]) -> str | None:
    """The first release that has all that these have: the latest of one engine's; None where one is not known."""
    known = [release for release in releases if release is not None]
    if not known or len(known) < len(releases):
        return None
    return UNRELEASED if UNRELEASED in known else max(known, key=_numbers)


def _numbers(release: str) -> list[int]:
    """Of a version or of a day, so that 0.20.0 comes after 0.4.3."""
    return [int(digits) for digits in re.findall(r"\d+", release)]
