"""Guesses at what a row writes next, of which one pass over the model tells how many are right.

A lane that parts from the reference goes on much as a text that is known: as the prompt, the reference or another lane
has it, or as it wrote before. So what followed the same few tokens there is read along with its own next token, and
what the lane would have chosen itself is kept (Leviathan et al., 2023, with the lookup of Yang et al., 2023: *Inference
with Reference*). The weights are read once a pass, which a single row spends nearly all its time on.
"""

from collections.abc import Sequence

from kvq_core.engine.ahead import Ahead

MOST = 6  # tokens of a pass: the weights of 2 to 6 are read as fast as those of one, of 9 a fifth slower
LOOKED_UP = range(4, 1, -1)  # tokens: after a single one too few guesses are right for what a longer pass takes


class Drafts:
    """What followed the last tokens of a text where they stood before."""

    def __init__(self, ahead: Ahead, known: Sequence[Sequence[int]], own: Sequence[int]):
        """``ahead``: of the one row that writes; ``known``: whole texts, of which a later one is believed before an
        earlier; ``own``: the text that is written, so far, which is believed most."""
        self._ahead = ahead
        self._after: dict[tuple[int, ...], tuple[Sequence[int], int]] = {}  # by tokens: a text, and where they end
        for text in known:
            self._learn(text, 1, len(text))
        self._own: list[int] = []
        self.extend(own)

    def extend(self, tokens: Sequence[int]) -> None:
        """So many more are written. Where they end now is told by none: nothing follows them yet."""
        first = max(1, len(self._own))
        self._own += tokens
        self._learn(self._own, first, len(self._own))

    def _learn(self, text: Sequence[int], first: int, end: int) -> None:
        for at in range(first, end):
            for length in LOOKED_UP:
                if length <= at:
                    self._after[tuple(text[at - length : at])] = text, at

    def guess(self, left: int) -> list[int]:
        """What may follow, after the longest of its ends that is known, ``left`` tokens before the last that is to be
        written; as many as the pass of the row's next token takes."""
        most = self._ahead.at_once(min(MOST, left)) - 1
        for length in LOOKED_UP:
            if (found := self._after.get(tuple(self._own[-length:]))) is not None:
                text, at = found
                return list(text[at : at + most])
        return []
