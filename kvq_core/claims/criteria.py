"""The claims and the criteria they are judged by: data from ``presets/claims``, one TOML file a paper."""

import re
import tomllib
from abc import abstractmethod
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from kvq_core.claims.answers import Answers
from kvq_core.claims.board import NAME, SHIPPED, Criterion
from kvq_core.claims.counted import CommutedCounts, KeyRatios
from kvq_core.claims.decoding import Decoding, Lossless
from kvq_core.claims.distributions import Decay, Tails
from kvq_core.claims.measures import Lanes, Measure, Numbers, PrintedSizes, StoredSize
from kvq_core.claims.sizes import CodebookFiles, CodebookSizes, DecodingMemory
from kvq_core.claims.structure import KeyCodebooks, KeySpectra, OneHead, Persistence, QuerySubspace
from kvq_core.claims.subspaces import OtherSubspaces
from kvq_core.claims.texts import Text
from kvq_core.errors import SpecError, excerpt
from kvq_core.frozen import Frozen
from kvq_core.presets import errors_named

SETTING = "setting.toml"
MEASURES: dict[str, type[Measure]] = {
    "lanes": Lanes,
    "decoded": Decoding,
    "stored_size": StoredSize,
    "printed_sizes": PrintedSizes,
    "query_subspace": QuerySubspace,
    "key_spectra": KeySpectra,
    "persistence": Persistence,
    "key_codebooks": KeyCodebooks,
    "lossless": Lossless,
    "other_subspaces": OtherSubspaces,
    "decay": Decay,
    "tails": Tails,
    "one_head": OneHead,
    "codebook_sizes": CodebookSizes,
    "codebook_files": CodebookFiles,
    "decoding_memory": DecodingMemory,
    "answers": Answers,
    "key_ratios": KeyRatios,
    "commuted_counts": CommutedCounts,
}
_DERIVED = re.compile(rf"({NAME}) ([-/]) ({NAME})")


class ClaimRule(Frozen):
    """A claim holds if all its criteria do, for the numbers' means and in ``share[0] / share[1]`` of the texts."""

    sentence: str
    share: tuple[int, int]
    fewest_texts: int = Field(ge=3)


class ClaimSetting(Frozen):
    """What all claims share: the length of the texts, the texts, the rule."""

    prompt_tokens: int = Field(ge=1)
    later_tokens: int = Field(ge=2)
    texts: tuple[str, ...]  # those of claims that name none
    rule: ClaimRule
    text: dict[str, Text]

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.later_tokens


class Judged(Frozen):
    """What the paper says and where, and what has to come out for it to hold here.

    ``sentence`` is what the criteria test, ``quote`` the paper's own words, ``less`` where the former falls short of
    them. ``derived`` numbers are differences or quotients of the numbers that are measured.
    """

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    sentence: str
    where: str
    quote: str = Field(min_length=1)
    quoted_from: str = Field(min_length=1)
    less: str
    setting: str
    note: str = ""
    derived: dict[str, str] = {}
    holds_if: tuple[str, ...] = Field(min_length=1)
    show: tuple[str, ...] = ()  # numbers to report beside those of the criteria

    @abstractmethod
    def measured(self) -> set[str]:
        """Names of the numbers that are measured. Raises SpecError where nothing can be."""

    @model_validator(mode="after")
    def _measurable(self) -> Self:
        known = self.measured()
        for name, text in self.derived.items():
            found = _DERIVED.fullmatch(text)
            if found is None or not {found[1], found[3]} <= known:
                raise SpecError(f"{self.id}: derived {name} = {text!r} is no difference or quotient of known numbers.")
        known |= set(self.derived)
        used = {name for criterion in self.criteria() for name in criterion.names} | set(self.show)
        if unknown := sorted(used - known):
            raise SpecError(f"{self.id}: {unknown[0]!r} is not measured; there are {', '.join(sorted(known))}.")
        return self

    def criteria(self) -> list[Criterion]:
        return [Criterion.parse(text) for text in self.holds_if]

    def reported(self, numbers: Numbers) -> Numbers:
        """The numbers of one text with the derived ones, cut down to those criteria and ``show`` name."""
        found = dict(numbers)
        for name, text in self.derived.items():
            left, sign, right = text.split(" ")
            found[name] = numbers[left] - numbers[right] if sign == "-" else numbers[left] / numbers[right]
        used = [name for criterion in self.criteria() for name in criterion.names]
        return {name: found[name] for name in dict.fromkeys([*used, *self.show])}


class Claim(Judged):
    """One claim about a model: ``measure`` names a measurement and ``arguments`` are its settings. With
    ``baseline_texts`` the mean over those texts enters each text's numbers as ``baseline.<name>``."""

    measure: str
    arguments: dict[str, Any]
    texts: tuple[str, ...] = ()
    baseline_texts: tuple[str, ...] = ()

    def measured(self) -> set[str]:
        known = set(self.measurement().names)
        return known | ({f"baseline.{name}" for name in known} if self.baseline_texts else set())

    def measurement(self) -> Measure:
        """Raises SpecError for an unknown name or impossible settings."""
        if self.measure not in MEASURES:
            raise SpecError(f"{self.id}: unknown measure {self.measure!r}; known: {', '.join(MEASURES)}.")
        return MEASURES[self.measure].model_validate(self.arguments)


class LatencyClaim(Judged):
    """One claim about time on a GPU. ``cases`` is the pattern of the benchmark's cases that say something of it;
    ``numbers``: by name, what is read of such a case (of a time its median), or of another one, ``case:number``, with
    the pattern's groups in its name. ``said``: what to say where it does not hold, about the number ``said_of``."""

    cases: str
    numbers: dict[str, str]
    said: str = ""
    said_of: str = ""

    def measured(self) -> set[str]:
        return set(self.numbers)


class Paper(Frozen):
    """One paper's claims, and those of them that are about time."""

    name: str
    title: str
    arxiv: str
    claims: tuple[Claim, ...] = Field(min_length=1)
    latency: tuple[LatencyClaim, ...] = ()


@cache
def setting() -> ClaimSetting:
    """Raises SpecError where the file says something impossible."""
    return _read(SHIPPED / SETTING, ClaimSetting)


@cache
def papers() -> dict[str, Paper]:
    """Every paper by the name of its file. Raises SpecError naming the file that says something impossible."""
    files = sorted(SHIPPED.glob("*.toml"), key=lambda f: f.stem)
    return {file.stem: _read(file, Paper) for file in files if file.name != SETTING}


def paper(name: str) -> Paper:
    """Raises SpecError naming those there are."""
    known = papers()
    if name.lower() not in known:
        raise SpecError(f"There are no claims of {excerpt(name)}. Available: {', '.join(known)}.")
    return known[name.lower()]


def _read(file: Path, kind: type[Any]) -> Any:
    with errors_named(f"presets/claims/{file.name}"):
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        if kind is Paper:
            data = {"name": file.stem, **data}
        return kind.model_validate(data)
