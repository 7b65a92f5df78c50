"""Prompts that have been read, held in memory for lanes that are added later: only to save time, so a quarter of free
memory at most, given back whenever something else needs the room, and read again to the same bits."""

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvq_core.engine.key_log import Replay
from kvq_core.engine.prefill import CHUNK, Precision, SharedPrefill
from kvq_core.engine.stress import AppliedStress, ReferenceShift
from kvq_core.machine.memory import free_bytes, hold_spare
from kvq_core.models import LoadedModel
from kvq_core.spec import Stress

SHARE = 4  # of free memory, one part in so many
MOST = 8


@dataclass
class ReadPrompt:
    """A prompt as it was read, stressed where that was asked for; ``answered``: the reference's logits (positions,
    vocabulary) by the tokens it was fed, of a batch of its own; ``replays``: what rows of runs on it can be computed
    again from, by the run's id."""

    prefill: SharedPrefill
    stress: AppliedStress | None = None
    unchanged: ReferenceShift | None = None
    answered: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    replays: dict[str, Replay] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        answered = sum(x.numel() * x.element_size() for x in list(self.answered.values()))
        return self.prefill.nbytes + answered + sum(replay.nbytes for replay in list(self.replays.values()))


class ReadPrompts:
    """The last ones read, each of one owner, all of one model. Any thread."""

    def __init__(self) -> None:
        self._held: dict[str, ReadPrompt] = {}  # by key, the newest last
        self._model = ""
        self._lock = threading.Lock()

    def take(self, key: str) -> ReadPrompt | None:
        """What is held under a key, which counts as new again."""
        with self._lock:
            found = self._held.pop(key, None)
            if found is not None:
                self._held[key] = found
            return found

    def keep(self, key: str, reading: ReadPrompt) -> None:
        """Hold a reading, in place of older ones where memory is short and of those of another model."""
        model = reading.prefill.model
        with self._lock:
            if model.model_hash != self._model:
                self._held.clear()
            before = self._held.pop(key, None)
            if before is not None and before is not reading:  # the same prompt, read again to the same bits
                reading.answered = {**before.answered, **reading.answered}
                reading.replays = {**before.replays, **reading.replays}
            self._model, self._held[key] = model.model_hash, reading
            sizes = {key: held.nbytes for key, held in self._held.items()}
            most = (free_bytes(model.device) + sum(sizes.values())) // SHARE
            for oldest in list(self._held):  # what only maps are made from goes before what every lane begins with
                if sum(sizes[key] for key in self._held) > most:
                    self._held[oldest].replays.clear()
                    sizes[oldest] = self._held[oldest].nbytes
            for oldest in list(self._held):
                if len(self._held) > MOST or sum(sizes[key] for key in self._held) > most:
                    del self._held[oldest]

    def replay(self, run_id: str) -> Replay | None:
        """What the rows of a run can be computed again from, where that is held."""
        with self._lock:
            found = (held.replays.get(run_id) for held in reversed(self._held.values()))
            return next((replay for replay in found if replay is not None), None)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(held.nbytes for held in self._held.values())


READINGS = ReadPrompts()
hold_spare(READINGS.clear)


def key_of(
    model: LoadedModel,
    ids: Sequence[int],
    scored: Sequence[int],
    turns: Sequence[int],
    held: Precision,
    stress: Stress,
    owner: str,
) -> str:
    """Over all that decides a reading to the last bit, and whose it is."""
    decides = [model.model_hash, str(model.dtype), str(model.device), torch.__version__, torch.get_num_threads(), CHUNK]
    read = [list(ids), list(scored), list(turns), str(held), stress.model_dump_json() if stress.active else ""]
    return hashlib.sha256(json.dumps([*decides, *read, owner]).encode()).hexdigest()
