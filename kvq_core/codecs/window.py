"""Which tokens stay in full precision, and when tokens leave for the packed store."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """[sink tokens | packed | recent tokens]: the first ``sink`` tokens and the newest ones are kept unquantized.

    After the attention of a step, ``step`` tokens (the oldest of the window) are encoded whenever the window holds
    ``recent + step`` or more, so the step that fills a block still attends to full precision. KIVI's keys are
    ``recent=0, step=residual_length`` (the window grows from 0 to residual_length - 1), its values
    ``recent=residual_length, step=1`` (always the newest residual_length). ``step=None``: tokens never leave.
    ``prompt_only``: only prompt tokens are ever encoded; generated ones stay in the window. ``rewritten``: tokens are
    stored anew after they left. ``whole_prompt``: all but the ``recent`` tokens of a prompt leave at once, and of its
    later chunks once ``step`` are held.
    """

    sink: int = 0
    recent: int = 0
    step: int | None = 1
    prompt_only: bool = False
    rewritten: bool = False
    whole_prompt: bool = False

    def leaving(self, held: int, prompt: bool = False) -> int:
        """How many of ``held`` window tokens (sinks not counted) are due for encoding: a multiple of ``step``, but of a
        ``prompt`` that leaves as a whole."""
        if self.step is None or held < self.recent + self.step:
            return 0
        if prompt and self.whole_prompt:
            return held - self.recent
        return (held - self.recent) // self.step * self.step

    def packed(self, tokens: int) -> int:
        """Tokens held packed once a prompt of ``tokens`` has entered."""
        entered = max(0, tokens - self.sink)
        return max(0, entered - self.recent) if self.whole_prompt else self.leaving(entered)

    def frozen(self, tokens: int) -> int:
        """Length of the prefix whose stored form no later step changes, ``tokens`` having entered."""
        if self.step is None or self.prompt_only:
            return tokens
        return min(tokens, self.sink + (0 if self.rewritten else self.packed(tokens)))
