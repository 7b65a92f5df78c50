"""What a run reads and writes, in order: the chunks of the prompt, given turns, and the answer."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvq_core.spec import Chunks

HALF = 1024  # of a prompt longer than two of these, what is scored is spread over it
SAMPLED = 64  # positions scored at the end of each


@dataclass(frozen=True)
class Segment:
    """Tokens ``start`` .. ``end`` of the prompt: read as a prompt, or, ``answered``, one by one as the model wrote them
    in an earlier turn."""

    start: int
    end: int
    answered: bool = False

    def passes(self, chunk: int | None) -> Iterator["Segment"]:
        """The forward passes in which its tokens enter a cache; ``chunk`` None: a prompt's in one."""
        size = 1 if self.answered else chunk or self.end - self.start
        for start in range(self.start, self.end, size):
            yield Segment(start, min(start + size, self.end), self.answered)


def passes(segments: list[Segment], chunks: Chunks | None) -> list[Segment]:
    """In which passes the prompt enters a lane's cache after what is taken from the reference's own prefill: nothing
    where it is read in full precision and has one turn, or fits into one raw chunk."""
    every = [each for segment in segments for each in segment.passes(None if chunks is None else chunks.chunk)]
    stored = chunks is not None and chunks.own_chunk == "stored"
    return every if stored else every[1:]


def scored_positions(how: str, first: int, tokens: int) -> list[int]:
    """Positions of a prompt of ``tokens`` whose next tokens are scored: from ``first`` on, where lanes differ from the
    reference, and always the last one, which the first new token follows. ``how``: ComparisonSpec.score_prompt."""
    if how == "none":
        return [tokens - 1]
    dense = how == "all" or tokens <= 2 * HALF
    return [p for p in range(min(first, tokens - 1), tokens) if dense or p % HALF >= HALF - SAMPLED or p == tokens - 1]
