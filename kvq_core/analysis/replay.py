"""How a lane's cache stood at every step of a run: which tokens its window held, and at how many bits each was."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvq_core.analysis.plans import lane_plan
from kvq_core.analysis.span import token_bits
from kvq_core.record.arrays import Arrays
from kvq_core.record.fields import Record

FULL = 16.0  # bits of a token that is kept as it is
Kind = Literal["key", "value"]


@dataclass(frozen=True)
class Movement:
    """Of keys or values of a lane: the first ``sink`` tokens stay in full precision, and after them ``packed[s]`` are
    stored quantized while step s reads. ``bits``: (tokens,) of every token as it is stored in the end, an element.

    ``packed`` is None where its layers or tokens do not move together, or not as their window says: then only the end
    is known. ``rewritten``: tokens are stored anew while it decodes, so that their bits at earlier steps are not known.
    """

    bits: np.ndarray
    sink: int
    packed: np.ndarray | None
    rewritten: bool

    def at(self, step: int) -> np.ndarray:
        """(tokens there,) bits of each while a step reads; as in the end where nothing else is known."""
        if self.packed is None:
            return self.bits
        there = self.bits[: len(self.bits) - (len(self.packed) - 1 - step)]
        inside = np.arange(len(there))
        quantized = (inside >= self.sink) & (inside < self.sink + self.packed[step])
        return np.where(quantized, there, FULL)


def movement(record: Record, arrays: Arrays, index: int, kind: Kind) -> Movement | None:
    """Of one lane; None where the run kept no bits of it."""
    bits = token_bits(arrays, index, kind)
    if not bits.size:
        return None
    plan = lane_plan(record, index)
    own = [each for each in plan or () if each.tensor == f"{kind}s"]
    if plan is None or any(each.rule.tokens != "all" for each in own):
        return Movement(bits, 0, None, False)
    prompt = len(record.reference.prompt_token_ids)
    steps = bits.size - prompt
    if not own:  # kept as it is
        return Movement(bits, 0, np.zeros(max(0, steps), dtype=int), False)
    windows = {each.window for each in own}
    window, rewritten = next(iter(windows)), any(each.rewritten for each in windows)
    if len(windows) > 1:
        return Movement(bits, 0, None, rewritten)
    sink = prompt if window.step is None else min(prompt, window.sink)
    packed, counts = window.packed(prompt), []
    for step in range(steps):
        counts.append(packed)  # what the step reads; its own token is there, and what is due leaves after it
        held = prompt + step + 1 - sink - packed
        packed += 0 if window.prompt_only else window.leaving(held)
    found = Movement(bits, sink, np.array(counts, dtype=int), rewritten)
    return found if _ends_so(bits, sink, packed) else Movement(bits, 0, None, rewritten)


def _ends_so(bits: np.ndarray, sink: int, packed: int) -> bool:
    """Whether in the end the packed tokens are quantized and the others in full precision."""
    inside = np.arange(bits.size)
    quantized = (inside >= sink) & (inside < sink + packed)
    return bool(np.array_equal(bits < FULL - 1e-3, quantized))
