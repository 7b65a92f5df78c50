"""Whether work may start here, and why not: the only place that decides it, for the page and for the API."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvq_core.errors import LimitError
from kvq_core.limits import has_more, limits
from kvq_core.machine.memory import room_for, shortage
from kvq_core.pipeline.estimate import Estimate
from kvq_core.pipeline.solved import cache_at
from kvq_core.sizing.count import CacheAt
from kvq_core.spec import ComparisonSpec
from kvq_core.studies.sources import PromptSource
from kvq_core.studies.task_suites import words_of
from ui.html.numbers import plural, seconds
from ui.service.line import WaitingLine

HOUR_S = 3600.0
VALUES, VALUES_OF_A_PROMPT = 20_000, 500  # of plain data: the largest comparison's, and a long conversation's
WORD = 4  # bytes of a suite's words, on average at least, with what is between them


@dataclass(frozen=True)
class Quote:
    """What a run would take, and why it may not start here; ``remark`` is what else its visitor should know."""

    estimate: Estimate
    refusal: str | None
    remark: str | None


class Admission:
    """The limits of kvq_core/limits.py applied to what visitors ask for. All methods can be called from any thread."""

    def __init__(
        self, line: WaitingLine, estimate: Callable[[ComparisonSpec], Estimate], clock: Callable[[], float] = time.time
    ):
        self._line, self._estimate, self._clock = line, estimate, clock
        self._lock = threading.Lock()
        self._started: dict[str, deque[float]] = {}  # by visitor, times of the last hour

    def quote(self, spec: ComparisonSpec) -> Quote:
        """Before Run: everything that does not depend on who asks.

        Raises LimitError for more lanes, or a longer text, than are taken here, before anything is tokenized; KvqError
        where the spec cannot be run at all.
        """
        check_characters(spec)
        check_lanes(spec)
        found = self._estimate(spec)
        most = limits()
        tokens, lanes = found.tokens, len(spec.lanes)
        refusal = too_much_work(tokens, lanes)
        free = room_for(found.cost.bytes - self._line.bytes_at_work(), found.device) + self._line.bytes_at_work()
        refusal = refusal or shortage(found.cost.bytes, free, tokens, lanes)
        remark = None
        if most.seconds is not None and found.cost.seconds is not None and found.cost.seconds > most.seconds:
            remark = f"A run is stopped after {seconds(most.seconds)} here: this one would hardly finish."
        return Quote(found, refusal, remark)

    def admit(self, spec: ComparisonSpec) -> Estimate:
        """At Run: the estimate of a run that may start here. Raises KvqError where ``quote`` refuses."""
        found = self.quote(spec)
        if found.refusal:
            raise LimitError(found.refusal)
        return found.estimate

    @contextmanager
    def counted(self, visitor: str, session: str) -> Iterator[None]:
        """Room in the line for one more of this visitor, taken inside; a session's older work is replaced, not added.

        Raises LimitError: the line is full, or this visitor waits or has started too much already.
        """
        most, now = limits(), self._clock()
        with self._lock:
            self._forget_before(now - HOUR_S)
            if (held := self._line.count(but=session)) >= most.line:
                raise LimitError(f"The line is full: {plural(held, 'run')} of {most.line}. Try again in a minute.")
            own = self._line.count(visitor, but=session)
            if most.waiting is not None and own >= most.waiting:
                raise LimitError(
                    f"{plural(own, 'run')} of yours {'is' if own == 1 else 'are'} at work or waiting; this instance "
                    f"takes {most.waiting} of a visitor at a time. Wait for one to finish, or cancel it."
                )
            times = self._started.get(visitor, deque())
            if most.per_hour is not None and len(times) >= most.per_hour:
                wait = max(1, round((times[-most.per_hour] + HOUR_S - now) / 60))
                raise LimitError(
                    f"You have started {plural(len(times), 'run')} within an hour; this instance allows "
                    f"{most.per_hour}. The next one can start in {wait} min."
                )
            yield
            if most.per_hour is not None:
                self._started.setdefault(visitor, times).append(now)

    def _forget_before(self, time: float) -> None:
        for visitor, times in list(self._started.items()):
            while times and times[0] <= time:
                times.popleft()
            if not times:
                del self._started[visitor]


def too_much_work(tokens: int, lanes: int) -> str | None:
    """Why this instance does not run so many tokens, prompt and answer together, through so many lanes."""
    most = limits().work
    if most is None or tokens * (lanes + 1) <= most:
        return None
    return (
        f"{tokens:,} tokens × {lanes + 1} caches (the reference and {plural(lanes, 'lane')}) are "
        f"{tokens * (lanes + 1):,}; this instance allows {most:,}. Shorten to "
        f"{most // (lanes + 1):,} tokens, prompt and answer together{_or_lanes(most // tokens - 1)}."
    )


def check_memory(found: Estimate, lanes: int) -> None:
    """When a run's turn has come: raises LimitError where the memory that is free now is not enough."""
    if reason := shortage(found.cost.bytes, room_for(found.cost.bytes, found.device), found.tokens, lanes):
        raise LimitError(reason)


def check_characters(spec: ComparisonSpec) -> None:
    """Counted before anything is tokenized, which takes time in proportion. Raises LimitError."""
    said = [message.model_dump_json() for message in spec.messages or ()]
    given = sum(len(text or "") for text in (spec.prompt, spec.system, spec.continuation, *said))
    check_conversation(spec)
    if given > (most := limits().characters):
        raise LimitError(
            f"The prompt has {given:,} characters, system message and continuation counted; this instance takes "
            f"{most:,}. Shorten it by {given - most:,}."
        )


def check_conversation(spec: ComparisonSpec) -> None:
    """Raises LimitError for more messages, or larger tools, than this instance takes."""
    most, messages = limits(), len(spec.messages or ())
    if most.messages is not None and messages > most.messages:
        raise LimitError(f"The conversation has {messages:,} messages; this instance takes {most.messages:,}.")
    tools = len(json.dumps(spec.tools))
    if most.tools is not None and tools > most.tools:
        raise LimitError(f"The tools have {tools:,} characters as JSON; this instance takes {most.tools:,}.")


def check_plain(data: Any) -> None:
    """What a program sends, counted before anything is made of it. Raises LimitError."""
    most = limits()
    allowed = VALUES + VALUES_OF_A_PROMPT * (most.prompts or 0)
    if most.prompts is not None and has_more(data, allowed):
        raise LimitError(f"What was sent holds more than {allowed:,} values; this instance takes no more.")
    told = data if isinstance(data, dict) else {}
    if isinstance(lanes := told.get("lanes"), list):
        _check_lanes(len(lanes))
    prompts = told["prompts"] if isinstance(told.get("prompts"), dict) else {}
    for held in (prompts.get(way) for way in ("rows", "texts")):
        if isinstance(held, list):
            check_study(len(held), len(held), 1)


def check_lanes(spec: ComparisonSpec) -> None:
    """Raises LimitError."""
    _check_lanes(len(spec.lanes))


def _check_lanes(given: int) -> None:
    most = limits().lanes
    if most is not None and given > most:
        raise LimitError(f"{plural(given, 'lane')} were given; this instance takes {most}. Remove {given - most}.")


def check_study_bytes(given: int) -> None:
    """Counted before prompts are read. Raises LimitError."""
    if given > (most := limits().study_bytes):
        raise LimitError(f"The prompts have {given:,} bytes; this instance takes {most:,} of a study.")


def checked_cache_at(spec: ComparisonSpec) -> CacheAt:
    """Where the cache of a comparison ends up, for bundles that are solved for it: its prompt is checked before it is
    tokenized for that. Raises KvqError as ``cache_at`` does."""
    check_characters(spec)
    return cache_at(spec)


def check_prompts(source: PromptSource, models: int = 1, lanes: int = 0) -> None:
    """What is asked of a study's prompts, before any of them is made. Raises LimitError, and SpecError for a suite that
    is not there."""
    count = len(source.rows or source.texts or ()) if source.suite is None else source.n
    check_study(count, count * models, models)
    if source.suite is not None:
        longest, total = words_of(source.suite, n=source.n, seed=source.seed, **source.options)
        check_study_bytes(WORD * total)
        if refusal := too_much_work(longest, lanes):  # a word is a token, or several
            raise LimitError(f"The longest prompt: {refusal}")


def check_study(prompts: int, cells: int, models: int) -> None:
    """Raises LimitError for more prompts, or more cells, than this instance takes of a study."""
    most = limits()
    if most.prompts is not None and prompts > most.prompts:
        raise LimitError(f"{plural(prompts, 'prompt')} were given; this instance takes {most.prompts:,} of a study.")
    if most.cells is not None and cells > most.cells:
        raise LimitError(
            f"{plural(prompts, 'prompt')} on {plural(models, 'model')} are {cells:,} cells; this instance takes "
            f"{most.cells:,} of a study. Give fewer prompts, or fewer models."
        )


def _or_lanes(lanes: int) -> str:
    return f", or keep {plural(lanes, 'lane')}" if lanes > 0 else ""
