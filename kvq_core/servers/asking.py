"""A server asked prompt by prompt beside its baseline: the baseline's answer is fed token by token, and what both give
to every token is compared. What is done is kept, so that who was interrupted goes on."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvq_core.errors import SpecError
from kvq_core.machine.progress import Progress, Report
from kvq_core.servers.dialects import Listed, Messages, Server, Tokens
from kvq_core.servers.http import ServerError
from kvq_core.servers.tops import Apart, Top
from kvq_core.settings import settings
from kvq_core.studies.prompts import StudyPrompt

PIECE, PIECES = 48, 8  # tokens at least and pieces at most of a prompt that is divided otherwise: it rounds otherwise
WORST, BEFORE = 2, 12  # positions of a prompt that are told in their text, and tokens before them
SAME_SERVER = 1e-5  # nats, or 3 floors: farther from what it answered before, it is another server


class Baseline(Protocol):
    """What a server is measured against: another server, or a model that is run here."""

    facts: dict[str, Any]

    def prompt(self, messages: Messages) -> Tokens: ...

    def tokens(self, text: str) -> Tokens: ...

    def answer(self, tokens: Tokens, count: int) -> Tokens: ...

    def lists(self, tokens: Tokens, forced: Tokens, top: int) -> tuple[list[Top], list[Top]]:
        """What it gave to every token of ``forced``, and what it gave once more, which is the floor."""
        ...


@dataclass(frozen=True)
class Asked:
    """One prompt that was asked. By position: ``kld`` nats at least and what the floor has of them, ``same``, ``tie``,
    ``covered`` and ``unlisted`` as ``Apart`` has them. ``reused`` of ``read``: tokens that the server had stored, of
    all that were sent; ``head``: its list of the first position."""

    id: str
    tokens: Tokens
    forced: Tokens
    kld: list[float]
    floor: list[float]
    same: list[bool]
    tie: list[bool]
    covered: list[float]
    unlisted: list[int]
    reused: int | None
    read: int
    wall: float
    spent: float | None
    head: tuple[list[int], list[float]]
    worst: list[dict[str, Any]]


class OtherServer:
    """A baseline that is a server, too."""

    def __init__(self, server: Server):
        self.server, self.facts = server, server.facts
        self.prompt, self.tokens, self.answer = server.prompt, server.tokens, server.answer

    def lists(self, tokens: Tokens, forced: Tokens, top: int) -> tuple[list[Top], list[Top]]:
        first = [each.top for each in listed(self.server, tokens, forced, top)]
        if self.server.again:
            ends = _divided(len(tokens))
            self.server.read(tokens[: ends[0]])
            for end in ends[1:]:
                self.server.listed(tokens[:end], 1)
        return first, [each.top for each in listed(self.server, tokens, forced, top)]


def _divided(length: int) -> list[int]:
    """Where pieces of a prompt end that is read in several."""
    piece = max(1, min(PIECE, length // 2), -(-length // PIECES))
    return list(range(piece, max(length, piece + 1), piece))


def listed(server: Server, tokens: Tokens, forced: Tokens, top: int) -> Iterator[Listed]:
    """What it gives to every token of ``forced``, each before it is told the token."""
    return (server.listed([*tokens, *forced[:at]], top) for at in range(len(forced)))


def notice(text: str) -> Progress:
    """What is said once, of no work that has an end to be far from."""
    return Progress(text, 0, 0)


def ask(
    server: Server, baseline: Baseline, prompts: Sequence[StudyPrompt], tokens: int, top: int, tell: Report
) -> Iterator[Asked]:
    """Every prompt in turn, those that are kept of an earlier time first. Raises ServerError and SpecError."""
    kept = _Kept(_key(server, baseline, prompts, tokens, top))
    done = kept.read()
    if done and not _same_server(server, done[0], top):
        tell(notice(f"{server.http.address} answers otherwise than when this was begun: all prompts are asked anew."))
        done = kept.clear()
    if done:
        tell(notice(f"{len(done)} of {len(prompts)} prompts were asked before; what is left is asked now."))
    ids = {each.id for each in done}
    yield from done
    for number, prompt in enumerate(prompts):
        if prompt.id not in ids:
            one = _one(server, baseline, prompt, tokens, top, (number, len(prompts)), tell)
            kept.add(one)
            yield one
    kept.clear()


def _one(
    server: Server, baseline: Baseline, prompt: StudyPrompt, count: int, top: int, place: tuple[int, int], tell: Report
) -> Asked:
    """``place``: how many prompts come before it, of how many."""
    tell(Progress("Asking", place[0] * count, place[1] * count, "tokens"))
    began, before = time.monotonic(), _spent(server, baseline)
    messages = messages_of(prompt)
    tokens = baseline.prompt(messages)
    if server.prompt(messages) != tokens:
        raise ServerError(
            f"{server.http.address} reads prompt {prompt.id} as other tokens than its baseline: another tokenizer, "
            "chat template or engine. Give two servers of one model."
        )
    forced = baseline.answer(tokens, count)
    if prompt.continuation is not None:
        forced = baseline.tokens(prompt.continuation)[:count]
    if not forced:
        raise ServerError(f"The baseline answers nothing to prompt {prompt.id}: there is nothing to score.")
    answers, again = baseline.lists(tokens, forced, top)
    server.read(tokens)
    found = list(_told(server, tokens, forced, top, (place[0] * count, place[1] * count), tell))
    tops = [each.top for each in found]
    apart, floor = Apart.of(answers, tops), Apart.of(answers, again)
    told = [each.reused for each in found if each.reused is not None]
    after = _spent(server, baseline)
    return Asked(
        id=prompt.id,
        tokens=tokens,
        forced=forced,
        floor=floor.kld.tolist(),
        reused=sum(told) if told else None,
        read=sum(len(tokens) + at for at in range(len(forced))),
        wall=time.monotonic() - began,
        spent=None if after is None else after - (before or 0.0),
        head=(tops[0].ids.tolist(), tops[0].logprobs.tolist()),
        worst=_worst(server, tokens, forced, answers, tops, apart.kld),
        **{name: values.tolist() for name, values in vars(apart).items()},
    )


def _told(
    server: Server, tokens: Tokens, forced: Tokens, top: int, place: tuple[int, int], tell: Report
) -> Iterator[Listed]:
    """``listed``, told a token at a time; ``place``: tokens before these, of how many. What the others cost is told
    first where nothing of a text is reused."""
    before, total = place
    began = time.monotonic()
    for at, each in enumerate(listed(server, tokens, forced, top), 1):
        yield each
        if at == 2 and each.reused is not None and each.reused < len(tokens) // 2:
            left = total - before
            took = (time.monotonic() - began) / 2 * left
            told = (
                f"{server.http.address} reads a text again with every token: about {left * len(tokens):,} tokens, "
                f"{took / 60:.0f} minutes at the speed of the first two."
            )
            tell(notice(told))
        tell(Progress("Asking", before + at, total, "tokens"))


def messages_of(prompt: StudyPrompt) -> Messages:
    """Raises SpecError for a prompt with tools."""
    if prompt.tools:
        raise SpecError(f"Prompt {prompt.id} has tools, which servers are not asked with; leave it out.")
    if prompt.messages is not None:
        return [message.model_dump(exclude_none=True, exclude_defaults=True) for message in prompt.messages]
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.prompt}]


def _spent(server: Server, baseline: Baseline) -> float | None:
    """Seconds that both say they took; None where one does not say."""
    told = [each.spent for each in (server, getattr(baseline, "server", None)) if isinstance(each, Server)]
    return sum(filter(None, told)) if any(each is not None for each in told) else None


def _worst(
    server: Server, tokens: Tokens, forced: Tokens, answers: list[Top], tops: list[Top], kld: np.ndarray
) -> list[dict[str, Any]]:
    found = []
    for at in np.argsort(-kld)[:WORST].tolist():
        before = [*tokens, *forced[:at]][-BEFORE:]
        own, other = ([int(each[at].ids[0])] for each in (answers, tops))
        texts = {"before": before, "baseline": own, "server": other}
        said = {name: server.text(part) for name, part in texts.items()}
        found.append({"position": at, "kld": float(kld[at]), **said})
    return found


def _same_server(server: Server, done: Asked, top: int) -> bool:
    """Whether it gives to the first position what it gave to it before."""
    server.read(done.tokens)
    now = server.listed(done.tokens, top).top
    return Top.of(*done.head).kld(now) <= max(SAME_SERVER, 3 * float(np.mean(done.floor)))


def _key(server: Server, baseline: Baseline, prompts: Sequence[StudyPrompt], tokens: int, top: int) -> str:
    other = getattr(baseline, "server", None)
    at = other.http.address if isinstance(other, Server) else ""
    asked = [prompt.model_dump(mode="json", exclude_defaults=True) for prompt in prompts]
    told = [server.http.address, server.facts, at, baseline.facts, asked, tokens, top]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


class _Kept:
    """Prompts that were asked, a line each, until all are; a line that was cut short is asked again."""

    def __init__(self, key: str):
        self.file: Path = settings().home / "verifying" / f"{key}.jsonl"

    def read(self) -> list[Asked]:
        found: list[Asked] = []
        with suppress(OSError):
            for line in self.file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError):
                    found.append(Asked(**json.loads(line)))
        return found

    def add(self, one: Asked) -> None:
        """A folder that cannot be written costs no result."""
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(f"{json.dumps(asdict(one))}\n")
                lines.flush()
                os.fsync(lines.fileno())

    def clear(self) -> list[Asked]:
        with suppress(OSError):
            self.file.unlink(missing_ok=True)
        return []
