"""What a run reads and writes, in order: the chunks of the prompt, given turns, and the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvq_core.spec import Chunks, Lane

HALF = 1024  # of a prompt longer than two of these, what is scored is spread over it
SAMPLED = 64  # positions scored at the end of each


@dataclass(frozen=True)
class Segment:
    """Tokens ``start`` .. ``end`` of the prompt: read as a prompt, or, ``answered``, as if one by one, as the model
    wrote them in an earlier turn."""

    start: int
    end: int
    answered: bool = False

    def passes(self, chunk: int | None) -> Iterator["Segment"]:
        """The parts of it that enter a cache at once, an answer token by token; ``chunk`` None: a prompt in one."""
        size = self.end - self.start if self.answered else chunk or self.end - self.start
        for start in range(self.start, self.end, size):
            yield Segment(start, min(start + size, self.end), self.answered)


@dataclass(frozen=True)
class Script:
    """A run's prompt: its token ids, and the segments that they are read in, which follow one another."""

    ids: list[int]
    segments: list[Segment]

    @classmethod
    def of_prompt(cls, ids: list[int]) -> "Script":
        """A prompt of one turn."""
        return cls.of_turns([(ids, False)])

    @classmethod
    def of_turns(cls, turns: list[tuple[list[int], bool]]) -> "Script":
        """From the ids of each turn, and whether the model answered them."""
        ids: list[int] = []
        segments = []
        for turn, answered in turns:
            segments.append(Segment(len(ids), len(ids) + len(turn), answered))
            ids += turn
        return cls(ids, segments)

    def passes(self, chunks: Chunks | None) -> list[Segment]:
        """In which passes the prompt enters a lane's cache after what is taken from the reference's own prefill: none
        where it is read in full precision and has one turn, or fits into one raw chunk."""
        every = [each for segment in self.segments for each in segment.passes(None if chunks is None else chunks.chunk)]
        stored = chunks is not None and chunks.own_chunk == "stored"
        return every if stored else every[1:]

    def through(self, lanes: Sequence[Lane]) -> int:
        """Tokens that lanes compute because they read the prompt, or earlier turns, through their own caches."""
        return sum(each.end - each.start for lane in lanes for each in self.passes(lane.chunks))

    @property
    def answered(self) -> list[int]:
        """Positions whose next tokens are of given answers, without the first one of each, which no position of the
        answer chose."""
        return [p for each in self.segments if each.answered for p in range(each.start, each.end - 1)]

    def scored(self, how: str, first: int) -> list[int]:
        """Positions whose next tokens are scored as the prompt's: from ``first`` on, where lanes differ from the
        reference, those of given answers left out, and always the last one, which the first new token follows.
        ``how``: ComparisonSpec.score_prompt."""
        tokens = len(self.ids)
        if how == "none":
            return [tokens - 1]
        dense = how == "all" or tokens <= 2 * HALF
        answers = {p - 1 for each in self.segments if each.answered for p in range(each.start, each.end)}
        wanted = (p for p in range(min(first, tokens - 1), tokens - 1) if p not in answers)
        return [*(p for p in wanted if dense or p % HALF >= HALF - SAMPLED), tokens - 1]
